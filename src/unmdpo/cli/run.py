"""`unmdpo run`: turns a recipe into trained policies and a table. Also what all commands about runs share."""

import os
import shlex
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmdpo.cli.output import say
from unmdpo.core.processes import fork_server

if TYPE_CHECKING:
    from unmdpo.results.run import Run

RecipeArgument = Annotated[str, typer.Argument(help="A packaged name, a YAML file, or a run of the store.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key.sub=value …")]
StoreOption = Annotated[Path, typer.Option("--store", envvar="UNMDPO_STORE", help="Folder where artifacts are kept.")]
HERE = Path("unmdpo-store")
WORKERS = "unmdpo.execute.local"  # imported by the server that workers are forked from


class Executor(Enum):
    local = "local"
    ray = "ray"


def find_run_folder(recipe: str, store: Path) -> tuple[Path | None, Path]:
    """Wherever a recipe is named, a run's folder may be, or its name in the store; and the store that it is in."""
    for folder in (Path(recipe), store / "runs" / recipe):
        if (folder / "recipe.yaml").is_file():
            return folder, folder.parent.parent if store == HERE else store
    return None, store


def find_recipe(recipe: str, store: Path) -> tuple[str, Path]:
    """A recipe and its store."""
    folder, store = find_run_folder(recipe, store)
    return recipe if folder is None else str(folder / "recipe.yaml"), store


def open_named(recipe: str, overrides: list[str] | None, store: Path) -> "Run":
    """A run to be read, as its record says: the one that is named, or the latest one of a recipe. Call it before
    anything heavy is imported: a wrong recipe is then known in a second."""
    from unmdpo.recipe import load_recipe

    folder, store = find_run_folder(recipe, store)
    described = load_recipe(find_recipe(recipe, store)[0], overrides or [])
    from unmdpo.results.run import read_latest_run, read_run
    from unmdpo.store.store import Store

    if folder is not None and not overrides:
        return read_run(Store(store), folder)
    return read_latest_run(described, Store(store))


def open_now(recipe: str, overrides: list[str] | None, store: Path, *, planning: bool = False) -> "Run":
    """The run of a recipe with its files as they are now."""
    from unmdpo.recipe import load_recipe

    recipe, store = find_recipe(recipe, store)
    described = load_recipe(recipe, overrides or [])
    from unmdpo.results.run import open_run
    from unmdpo.store.store import Store

    return open_run(described, Store(store), planning=planning)


def get_ready(jobs: int | None) -> None:
    """Lets the server of workers import what stages need while this process does."""
    if jobs != 1 and "RANK" not in os.environ:
        fork_server(WORKERS)


def run(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    store: StoreOption = HERE,
    until: Annotated[
        str | None, typer.Option(help="Stop after this stage, such as oof or policy[dpo]; several with commas.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Run only these stages; several with commas.")] = None,
    force: Annotated[
        list[str] | None, typer.Option(help="Make this stage again, and what depends on it if it differs.")
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="Ask the Hub anew what its names stand for.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Most stages at once; default: as many as fit on the GPUs, or one per core."),
    ] = None,
    executor: Annotated[Executor, typer.Option(help="Where stages run.")] = Executor.local,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show the tables only.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Show every table, every seed and every check.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write every event, and the table, as lines of JSON.")
    ] = False,
) -> None:
    """Run a recipe; finished stages are not run again. Inside a torchrun job, its ranks share the models."""
    from unmdpo.recipe import load_recipe

    recipe, store = find_recipe(recipe, store)
    described = load_recipe(recipe, overrides or [])
    if executor is Executor.local:
        get_ready(jobs)
    from unmdpo.execute import execute
    from unmdpo.execute.board import Output, shown_progress
    from unmdpo.execute.row_counts import count_rows
    from unmdpo.results.run import open_run
    from unmdpo.store.store import Store

    run = open_run(described, Store(store), update=update)
    output = Output.json if as_json else Output.quiet if quiet else Output.usual
    with shown_progress(len(run.wanted(until, only)), output) as view:
        execute(run, until=until, only=only, force=force or [], jobs=jobs, executor=executor.value, view=view)
    if int(os.environ.get("RANK", "0")) > 0:
        return  # the first rank speaks for all
    if as_json:
        _print_rows(run)
        return
    if run.summarized:
        show_summary(run, full=full)
    show_checks(run, full=full or not run.summarized)
    counted = count_rows(run)
    if counted is not None:
        say(f"data: {counted.line()}")
    if not quiet:
        say(f"run: {run.folder}", err=True)
        _show_policies(run)


def _print_rows(run: "Run") -> None:
    """The last lines of JSON: a row of the table each, and where the run lies."""
    import json

    for row in run.table() if run.summarized else []:
        say(json.dumps({"event": "row", **row}, ensure_ascii=False))
    say(json.dumps({"event": "run", "folder": str(run.folder)}, ensure_ascii=False))


def _show_policies(run: "Run") -> None:
    """Where a policy lies, the primary question's if there is one, and what can be done with it."""
    names = [name for name in run.recipe.trained if f"policy[{name}]" in run.finished]
    if not names:
        return
    asked = None if run.recipe.evaluation is None else run.recipe.primary.policy
    policy = next((name for name in names if name.partition("@")[0] == asked), names[-1])
    if run.recipe.evaluation is None:
        say("not judged: nothing here says whether it got better; `evaluation` in a recipe does", err=True)
    others = f" (and {len(names) - 1} more: unmdpo runs)" if len(names) > 1 else ""
    folder = run.artifact(f"policy[{policy}]").path / "model"  # not `run.policy`, which would verify gigabytes first
    say(f"policy {policy}: {folder}{others}", err=True)
    for what in ("report {run}", "chat {run} {policy}", "export {run} {policy} FOLDER"):
        say(f"next: unmdpo {what.format(run=shlex.quote(str(run.folder)), policy=policy)}", err=True)


def show_checks(run: "Run", *, full: bool = True) -> None:
    """The checks of scales, and the accuracy of trained judges."""
    from unmdpo.results.tasks import losses
    from unmdpo.scale.check import verdict

    for line in (*run.judge_lines, *losses(run)):
        say(line)
    shares = [f"{name} {100 * share:.1f} %" for name, share in run.held_out_accuracy.items()]
    if shares:
        say(f"held-out pairs ordered as labelled: {', '.join(shares)}")
    for name in run.recipe.scales:
        found = run.check(name)
        if found is not None:
            short = f"{found.finding} (gain on unseen prompts {found.gain})"
            say(f"scale {name}: {verdict(found) if full else short}")


def show_summary(run: "Run", *, full: bool = False) -> None:
    """The answer to the primary question and its table; in full, everything that was also seen."""
    from rich.console import Console

    from unmdpo.results.tables import judged_by, remarks

    console, asked, marks = Console(), run.recipe.primary, run.judge_marks
    if run.answer is not None:
        console.print(run.answer, markup=False, highlight=False)
    for panel, report in run.summary.items():
        for judge, tables in report["judges"].items():
            for opponent, outcomes in tables["against"].items():
                if full or (panel, judge, opponent) == (asked.panel, asked.judge, asked.against):
                    by = judged_by(judge, marks[judge])
                    title = f"{panel}: {report['prompts']} prompts, against {opponent}{f', by {by}' if by else ''}"
                    show_outcomes(title, outcomes, seeds=full)
        for remark in (*run.doubts(panel), *(remarks(report, run.recipe.methods) if full else ())):
            console.print(f"{panel}: {remark}", markup=False, highlight=False)
    for difference in run.world_differences:
        console.print(difference, markup=False, highlight=False)
    if not full:
        count = len(run.table().over_seeds())
        say(f"also seen: {count} comparisons in all, in the report and with --full; p Holm is corrected for them")


def show_outcomes(title: str, outcomes: dict[str, Any], *, seeds: bool = True) -> None:
    """One table; where there are several seeds, each below their mean if wanted."""
    from rich.console import Console
    from rich.table import Table

    from unmdpo.results.tables import chance

    table = Table("policy", "win %", "equal\nlength", "ΔR", "L/L_D", title=title, box=None, pad_edge=False)
    corrected = all("holm_win_rate" in outcome for outcome in outcomes.values())
    table.add_column("p\nHolm" if corrected else "p")
    for policy, outcome in outcomes.items():
        p = outcome["holm_win_rate" if corrected else "p_win_rate"]
        adjusted = "" if outcome["length_adjusted"] is None else f"{outcome['length_adjusted']['value']:.1f}"
        table.add_row(policy, *_cells(outcome, adjusted), chance(p))
        for seed, one in outcome["seeds"].items() if seeds else ():
            table.add_row(f"  seed {seed}", *_cells(one, ""), "")
    Console().print(table)


def _cells(outcome: dict[str, Any], adjusted: str) -> list[str]:
    rate, reward = _cell(outcome["win_rate"], 2), _cell(outcome["reward_difference"], 3)
    return [rate, adjusted, reward, f"{outcome['length_ratio']['value']:.3f}"]


def _cell(estimate: dict[str, float], digits: int) -> str:
    value, low, high = (f"{estimate[name]:.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} \\[{low}, {high}]"
