"""`unmdpo run` and `unmdpo verify`: a recipe in, a verified table out."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

RecipeArgument = Annotated[str, typer.Argument(help="A packaged name or a YAML file.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key.sub=value …")]
StoreOption = Annotated[
    Path, typer.Option("--store", envvar="UNMDPO_STORE", help="Where artifacts are kept and found.")
]
HERE = Path("unmdpo-store")


class Executor(Enum):
    local = "local"
    ray = "ray"


def run(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    store: StoreOption = HERE,
    until: Annotated[
        str | None, typer.Option(help="Stop after this stage, such as oof or policy[dpo].")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Make these stages alone.")] = None,
    force: Annotated[list[str] | None, typer.Option(help="Make this stage again; repeatable.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Stages at once; default: one for each GPU, or core.")
    ] = None,
    executor: Annotated[Executor, typer.Option(help="Where stages run.")] = Executor.local,
) -> None:
    """Do everything a recipe names; what is finished is not done again."""
    from unmdpo.cli.progress import shown_progress
    from unmdpo.pipeline.run import execute, open_run, wanted_stages
    from unmdpo.pipeline.store import Store
    from unmdpo.pipeline.workers import default_jobs
    from unmdpo.recipes import load_recipe

    opened = open_run(load_recipe(recipe, overrides or []), Store(store))
    with shown_progress(len(wanted_stages(opened, until, only))) as view:
        execute(
            opened,
            until=until,
            only=only,
            force=force or [],
            jobs=default_jobs(opened.recipe.compute.ranks) if jobs is None else jobs,
            executor=executor.value,
            view=view,
        )
    if "summary" in opened.finished:
        show_summary(opened.summary)
    typer.echo(f"run: {opened.folder}", err=True)


def verify(recipe: RecipeArgument, overrides: Overrides = None, store: StoreOption = HERE) -> None:
    """Hash every file of a run again and compute every reported number anew."""
    from unmdpo.errors import UserError
    from unmdpo.pipeline.run import open_run
    from unmdpo.pipeline.store import Store
    from unmdpo.pipeline.verify import verify as check
    from unmdpo.recipes import load_recipe

    opened = open_run(load_recipe(recipe, overrides or []), Store(store))
    if not opened.finished:
        raise UserError(
            f"nothing of this recipe is in {store}: `unmdpo run` makes it. If it was there before, a data "
            "file, a model or the recipe has changed since"
        )
    findings = list(check(opened))
    problems = [finding for finding in findings if finding.problem]
    if problems:
        lines = [f"{finding.stage}: {finding.what}: {finding.problem}" for finding in problems]
        damaged = sorted({finding.stage for finding in problems})
        mend = " ".join(f"--force '{stage}'" for stage in damaged[:6])
        advice = f"\nto make them anew: unmdpo run {recipe} {mend}"
        raise UserError(f"{len(problems)} of {len(findings)} checks failed\n" + "\n".join(lines) + advice)
    typer.echo(f"{len(findings)} checks, all hold")


def plan(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    store: StoreOption = HERE,
    device: Annotated[str, typer.Option(help="this, h200 or a100.")] = "this",
) -> None:
    """Show the stages, what is there already, and what the rest will cost."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from unmdpo.engine.sinks import clock
    from unmdpo.pipeline.outside import check_judge, missing_places
    from unmdpo.pipeline.plan import needs, useful_rate
    from unmdpo.pipeline.plan import plan as estimate
    from unmdpo.pipeline.run import open_run
    from unmdpo.pipeline.store import Store
    from unmdpo.recipes import load_recipe

    rate = useful_rate(device)
    described = load_recipe(recipe, overrides or [])
    check_judge(described)
    opened = open_run(described, Store(store), planning=True)
    planned = estimate(opened, device)
    table = Table("stage", "", "M tokens", "PFLOP", "GiB", "time", box=None, pad_edge=False)
    for cost in planned.costs:
        model = cost.flops > 0
        table.add_row(
            escape(cost.stage),
            "there" if cost.cached else "",
            f"{cost.tokens / 1e6:,.3g}" if model else "",
            f"{cost.flops / 1e15:,.3g}" if model else "",
            f"{cost.memory / 2**30:.3g}{' (recomputing)' if cost.checkpointing else ''}" if model else "",
            clock(cost.seconds(rate)) if model and not cost.cached else "",
        )
    Console().print(table)
    typer.echo(
        f"left to do: {clock(planned.seconds(rate))} on one device ({rate / 1e12:,.3g} useful TFLOP/s)"
    )
    typer.echo(f"pilots take {100 * planned.pilot_share:.0f}% of all arithmetic")
    for need in needs(opened):
        hours = f"{need.hours:,.1f}" if need.hours >= 1 else f"{max(need.hours, 0.001):.2g}"
        typer.echo(
            f"on {need.name}: {hours} GPU hours; {need.gpus} "
            f"GPU{'s' if need.gpus > 1 else ''} to a model, {need.memory / 2**30:.0f} GiB on each"
        )
    typer.echo("(hours by rates measured on one H200; an A100 is taken to reach the same share of its peak)")
    missing = missing_places(described)
    if missing:
        typer.echo(f"not there yet: {', '.join(f'{path} ({key})' for key, path in missing.items())}")
    if planned.assumed:
        typer.echo(f"assumed until the data has been read: {', '.join(planned.assumed)}")


def gc(
    store: StoreOption = HERE,
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove them; otherwise they are only named.")
    ] = False,
) -> None:
    """Find artifacts that no run refers to, and damaged ones that were set aside."""
    from unmdpo.errors import UserError
    from unmdpo.pipeline.garbage import discard, quarantined, unreferenced
    from unmdpo.pipeline.store import Store

    if not store.is_dir():
        raise UserError(f"{store}: there is no store here")
    opened = Store(store)
    places = unreferenced(opened) | quarantined(opened)
    for place, size in places.items():
        typer.echo(f"{size / 2**20:10.1f} MiB  {place}")
        if delete:
            discard(opened, place)
    what = "removed" if delete else "in no run or damaged; --delete removes them"
    total = sum(places.values()) / 2**20
    typer.echo(f"{len(places)} artifacts, {total:.1f} MiB {what}")


def compare(
    recipe: RecipeArgument,
    candidate: Annotated[str, typer.Argument(help="A policy, or initial.")],
    opponent: Annotated[str, typer.Argument(help="Another one.")],
    store: StoreOption = HERE,
) -> None:
    """Compare any two policies directly, on every panel."""
    from unmdpo.pipeline.run import open_run
    from unmdpo.pipeline.store import Store
    from unmdpo.recipes import load_recipe

    opened = open_run(load_recipe(recipe, []), Store(store))
    panels = opened.recipe.evaluation.answered if opened.recipe.evaluation is not None else []
    for panel in panels:
        outcome = opened.compare(candidate, opponent, panel).to_dict()
        show_summary({panel: {"prompts": outcome["prompts"], "against": {opponent: {candidate: outcome}}}})


def scale(
    recipe: RecipeArgument,
    name: Annotated[str, typer.Argument(help="A scale of the recipe.")],
    data: Annotated[str | None, typer.Option(help="New comparisons whose prompts to judge.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write.")] = Path("scale.parquet"),
    store: StoreOption = HERE,
) -> None:
    """Write q of every prompt as Parquet, surest to least sure."""
    from unmdpo.data import load_comparisons
    from unmdpo.data.domains import modal_domains
    from unmdpo.pipeline.fitted import write_table
    from unmdpo.pipeline.run import open_run
    from unmdpo.pipeline.store import Store
    from unmdpo.recipes import load_recipe

    fitted = open_run(load_recipe(recipe, []), Store(store)).scale(name)
    if data is None:
        table = fitted.known()
    else:
        rows = load_comparisons(data)
        prompts = {row.prompt_hash: row.prompt for row in rows}
        table = fitted.table([*prompts.values()], modal_domains(rows))
    write_table(table, out)
    low, high = (table["q"][place].as_py() for place in (0, -1))
    typer.echo(f"{out}: {len(table):,} prompts, q from {low:.4f} to {high:.4f}")


def show_summary(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for name, panel in summary.items():
        for opponent, outcomes in panel["against"].items():
            title = f"{name}: {panel['prompts']} prompts, against {opponent}"
            table = Table("policy", "win %", "ΔR", "L/L_D", title=title, box=None, pad_edge=False)
            for policy, outcome in outcomes.items():
                table.add_row(
                    policy,
                    _cell(outcome["win_rate"], 2),
                    _cell(outcome["reward_difference"], 3),
                    f"{outcome['length_ratio']['value']:.3f}",
                )
            console.print(table)


def _cell(estimate: dict[str, float], digits: int) -> str:
    value, low, high = (f"{estimate[name]:.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} \\[{low}, {high}]"
