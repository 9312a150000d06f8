"""Commands that look at a run before or after it: `plan`, `verify`, `scale`, `report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmdpo.cli.output import cell, check_target, say
from unmdpo.cli.run import HERE, Overrides, RecipeArgument, StoreOption, open_named, open_now, show_outcomes

if TYPE_CHECKING:
    from rich.table import Table

    from unmdpo.engine.pairs.proof import Proof
    from unmdpo.execute.plan import Plan
    from unmdpo.results.run import Run

PLENTY = 10  # times the longest pair: more room than that needs no mention
# When a stage needs more memory than there is.
HELP = (
    "More ranks (compute.ranks, compute.ranks_of), training.adapter, compute.offload_optimizer or a smaller "
    "compute.token_budget would help"
)


def verify(recipe: RecipeArgument, overrides: Overrides = None, store: StoreOption = HERE) -> None:
    """Check every file of a run against its hash, and recompute every reported number."""
    run = open_named(recipe, overrides, store)
    from unmdpo.core.errors import UserError
    from unmdpo.results.verify import verify as check

    if not run.finished:
        raise run.nothing_finished()
    findings = list(check(run))
    problems = [finding for finding in findings if finding.problem]
    if problems:
        lines = [f"{finding.stage}: {finding.what}: {finding.problem}" for finding in problems]
        damaged = sorted({finding.stage for finding in problems})
        options = " ".join(f"--force '{stage}'" for stage in damaged[:6])
        advice = f"\nto rebuild them: unmdpo run {recipe} {options}"
        raise UserError(f"{len(problems)} of {len(findings)} checks failed\n" + "\n".join(lines) + advice)
    say(f"{len(findings)} checks, all passed")


def plan(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    store: StoreOption = HERE,
    until: Annotated[str | None, typer.Option(help="Only what is needed up to this stage.")] = None,
    device: Annotated[str, typer.Option(help="The device to plan for: this, h200, h100 or a100.")] = "this",
) -> None:
    """Look for everything that would stop a run, then show its stages, memory and time. Exits with 2 if something
    would stop it."""
    run = open_now(recipe, overrides, store, planning=True)
    from unmdpo.core.errors import UserError
    from unmdpo.execute.board import shown_progress
    from unmdpo.execute.preflight import look_ahead
    from unmdpo.execute.row_counts import count_rows

    wanted = run.wanted(until)
    with shown_progress(len(wanted)) as view:
        findings = look_ahead(run, wanted, view, planning=True)
    for problem in findings.problems:
        say(f"problem: {problem}")
    for warning in findings.warnings:
        say(f"note: {warning}")
    counted = count_rows(run)
    if counted is not None:
        say(f"data: {counted.line()}")
    try:
        _show_plan(run, wanted, device)
    except UserError:
        if not findings.problems:
            raise
    if findings.problems:
        raise typer.Exit(2)
    say(f"Ready: unmdpo run {recipe} ({len(wanted)} stages, {len(run.finished)} finished)")


def _show_plan(run: "Run", wanted: list[str], device: str) -> None:
    from rich.console import Console

    from unmdpo.engine.training.metrics import roughly
    from unmdpo.execute.plan import (
        Plan,
        count_fitting,
        gpus_needed,
        longest_that_trains,
        prove_small,
        sizes_of,
        too_large,
        useful_flops_of,
    )
    from unmdpo.execute.plan import plan as estimate

    rate = useful_flops_of(device)
    sizes = sizes_of(run)
    whole = estimate(run, device, sizes)
    planned = Plan([stage for stage in whole.stages if stage.name in wanted], whole.assumed)
    console = Console()
    wide = console if console.is_terminal else Console(width=120)  # in a file, lines need not fit a screen
    wide.print(_plan_table(planned, rate))
    source = "by what one H200 reached" if device != "this" else "training by this device's rate, the rest as before"
    say(f"left to do: {roughly(planned.seconds(rate))} one after another ({rate / 1e12:,.2g} TFLOP/s; {source})")
    say(f"pilots take {100 * planned.pilot_share:.0f} % of all training")
    for stage in too_large(planned, device)[:1]:
        assert stage.cost is not None
        needed = f"{stage.cost.memory / 2**30:,.0f} GiB on each of {stage.cost.ranks} devices"
        gpus = gpus_needed(run, device, sizes)
        enough = "64 GPUs per model are not enough" if gpus is None else f"{gpus} GPUs per model are enough"
        say(f"does not fit: {stage.name} needs {needed}; {enough}. {HELP}")
    longest = int(sizes.lengths.sum(axis=1).max(initial=0))
    fitting = longest_that_trains(run, device)
    if 0 < fitting < PLENTY * longest:
        say(f"pairs of up to {fitting:,} tokens fit; the longest one here has {longest:,}")
    for line in count_fitting(run, sizes):
        say(line)
    say(_layout(prove_small(run)))
    _say_what_it_can_show(run, sizes.prompts)
    if planned.assumed:
        say(f"assumed until data and model are on this machine: {', '.join(planned.assumed)}")


def _say_what_it_can_show(run: "Run", prompts: int | None) -> None:
    """About the primary question. `prompts`: those to train on, if they are counted."""
    from unmdpo.execute.plan import panel_prompts
    from unmdpo.results.power import what_it_can_show

    asked = None if run.recipe.evaluation is None else run.recipe.primary
    if asked is None or asked.policy is None or asked.panel is None:
        return
    count = panel_prompts(run, asked.panel, prompts)
    if count is not None:
        say(what_it_can_show(run.store, max(2, count), len(run.recipe.runs[asked.policy])))


def _layout(proof: "Proof | None") -> str:
    if proof is None:
        return "how the model is scored will be proven when the run starts"
    why = f" ({proof.passed_over['packed']})" if "packed" in proof.passed_over else ""
    how = "packed, with FlashAttention" if proof.layout == "flash" else proof.layout
    own = "" if proof.own_error is None else f"; the model's own rounding: {proof.own_error:.2g}"
    return f"the model is scored {how}{why}; largest error of a response: {proof.error:.2g} nats{own}"


def _plan_table(planned: "Plan", rate: float) -> "Table":
    from rich.table import Table

    from unmdpo.engine.training.metrics import roughly
    from unmdpo.execute.plan import seconds_of

    columns = ("stage", "", "ranks", "M tokens", "PFLOP", "GiB each", "disk GiB", "time")
    table = Table(*columns, box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for stage in planned.stages:
        seconds = None if stage.is_finished else seconds_of(stage, rate)
        cells = [""] * 5
        if stage.cost is not None:
            recomputing = " (recomputing)" if stage.cost.recomputes else ""
            cells = [
                str(stage.cost.ranks),
                f"{stage.cost.tokens / 1e6:,.3g}",
                f"{stage.cost.flops / 1e15:,.3g}",
                f"{stage.cost.memory / 2**30:.3g}{recomputing}",
                f"{stage.cost.disk / 2**30:,.1f}",
            ]
        table.add_row(
            cell(stage.name), "done" if stage.is_finished else "", *cells, "" if seconds is None else roughly(seconds)
        )
    return table


def compare(
    recipe: RecipeArgument,
    candidate: Annotated[str, typer.Argument(help="A policy of the recipe, one training of it (dpo@17), or initial.")],
    opponent: Annotated[str, typer.Argument(help="The policy to compare it with.")],
    overrides: Overrides = None,
    store: StoreOption = HERE,
) -> None:
    """Compare two policies directly, on every panel."""
    run = open_named(recipe, overrides, store)
    evaluation = run.recipe.evaluation
    for panel in [] if evaluation is None else evaluation.answered:
        for judge in [] if evaluation is None else evaluation.all_judges:
            outcome, more = run.compare_all(candidate, opponent, panel, judge)
            title = f"{panel}: {outcome.prompts} prompts, against {opponent}{f', by {judge}' if judge else ''}"
            show_outcomes(title, {candidate: outcome.to_dict() | more})


def scale(
    recipe: RecipeArgument,
    name: Annotated[str, typer.Argument(help="A scale of the recipe.")],
    overrides: Overrides = None,
    data: Annotated[str | None, typer.Option(help="New comparisons; default: the training prompts.")] = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("scale.parquet"),
    check: Annotated[bool, typer.Option("--check", help="Print the check of the scale; write nothing.")] = False,
    store: StoreOption = HERE,
) -> None:
    """Write each prompt's q to a Parquet file, smallest (surest) first; or print how it did on unseen prompts."""
    if check:
        _check_scale(recipe, name, overrides, store)
        return
    check_target(out, ".parquet")
    fitted = open_named(recipe, overrides, store).scale(name)
    from unmdpo.data import load_comparisons
    from unmdpo.data.domains import modal_domains
    from unmdpo.results.scale import write_table

    if data is None:
        table = fitted.known()
    else:
        rows = load_comparisons(data)
        prompts = {row.prompt_hash: row.prompt for row in rows}
        table = fitted.table([*prompts.values()], modal_domains(rows))
    write_table(table, out)
    low, high = (table["q"][place].as_py() for place in (0, -1))
    say(f"{out}: {len(table):,} prompts, q from {low:.4f} to {high:.4f}")


def _check_scale(recipe: str, name: str, overrides: list[str] | None, store: Path) -> None:
    run = open_named(recipe, overrides, store)
    from unmdpo.core.errors import UserError, did_you_mean
    from unmdpo.scale.check import verdict

    if name not in run.recipe.scales:
        raise UserError(f"there is no scale '{name}'; {did_you_mean(name, run.recipe.scales)}")
    found = run.check(name)
    if found is None and f"check[{name}]" in run.stages:
        raise UserError(f"not checked yet: unmdpo run {recipe} --until 'check[{name}]'")
    if found is None:
        raise UserError(
            f"scale '{name}' cannot be checked: it is not fitted to pilots of this run, so nothing can be held out"
        )
    say(f"scale {name}: {verdict(found)}")


def report(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    store: StoreOption = HERE,
    out: Annotated[Path | None, typer.Option(help="File to write; default: in the run's folder.")] = None,
) -> None:
    """Write one HTML page about the finished stages of a run."""
    check_target(out, ".html")
    run = open_named(recipe, overrides, store)
    from unmdpo.lab.demo import truth_of
    from unmdpo.report import write_report

    path = write_report(run, out or run.folder / "report.html", truth_of(run.recipe))
    if not any(name.startswith("policy[") for name in run.finished):
        say("note: no policy of this run is trained", err=True)
    say(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
