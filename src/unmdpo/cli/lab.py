"""`unmdpo demo` and `unmdpo lab`: a small world with known truth."""

import shlex
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmdpo.cli.output import say
from unmdpo.cli.run import Overrides, get_ready

if TYPE_CHECKING:
    from unmdpo.lab.demo import ScaleCheck

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="A small world with known noise.")


class Shape(Enum):
    helpsteer3 = "helpsteer3"
    preference = "preference"


def demo(
    overrides: Overrides = None,
    folder: Annotated[Path, typer.Option(help="Folder for world, store and report.")] = Path("unmdpo-demo"),
    prompts: Annotated[int, typer.Option(min=100, help="Training prompts.")] = 1500,
    jobs: Annotated[int | None, typer.Option(min=1, help="Stages to run at once.")] = None,
) -> None:
    """Run the whole method in a small world with known truth: minutes on a laptop."""
    get_ready(jobs)
    from unmdpo.cli.run import show_checks, show_summary
    from unmdpo.execute import execute
    from unmdpo.execute.board import shown_progress
    from unmdpo.lab.demo import WORLD, check_scale, demo_recipe, truth_of
    from unmdpo.report import write_report
    from unmdpo.results.run import open_run
    from unmdpo.stages.scale import SCALE_STAGE
    from unmdpo.store.store import Store

    recipe = demo_recipe(folder, replace(WORLD, prompts=prompts), overrides or [])
    (folder / "demo.yaml").write_text(recipe.to_yaml(), "utf-8")
    run = open_run(recipe, Store(folder / "store"))
    with shown_progress(len(run.stages)) as view:
        execute(run, jobs=jobs, view=view)
    if run.summarized:
        show_summary(run)
    show_checks(run, full=False)
    for name, scale in recipe.scales.items():
        if run.has(SCALE_STAGE, name) and scale.unit == "prompt":
            _show_check(check_scale(run, name))
    report = write_report(run, folder / "report.html", truth_of(recipe))
    say(f"report: {report}")
    again = ["unmdpo", "run", str(folder / "demo.yaml"), "--store", str(folder / "store")]
    say(f"to change something and continue: {shlex.join(again)}")


def _show_check(check: "ScaleCheck") -> None:
    from rich.console import Console
    from rich.table import Table

    overall = check.overall
    agreement = "not defined" if overall is None else f"{overall.value:.2f} \\[{overall.low:.2f}, {overall.high:.2f}]"
    title = f"scale {check.name}: Spearman of q̂ with the true q* is {agreement}"
    names = ("domain", "prompts", "true q*", "fitted q̂", "Spearman within")
    console, table = Console(), Table(*names, box=None, pad_edge=False)
    for domain, row in check.by_domain.items():
        inside = row.correlation
        table.add_row(
            domain,
            str(row.prompts),
            f"{row.true:.2f}",
            f"{row.fitted:.2f}",
            "" if inside is None else f"{inside.value:.2f} \\[{inside.low:.2f}, {inside.high:.2f}]",
        )
    console.print(title)
    console.print(table)


@app.callback()
def _group() -> None:
    """One command, and still named."""


@app.command("export")
def export(
    out: Annotated[Path, typer.Argument(help="A .jsonl file.")],
    shape: Annotated[Shape, typer.Option(help="The dataset whose columns to use.")] = Shape.helpsteer3,
    prompts: Annotated[int, typer.Option(min=1)] = 1500,
    noise: Annotated[float, typer.Option(min=0.0, help="Typical q*.")] = 0.8,
    noise_spread: Annotated[float, typer.Option(min=0.0, help="Standard deviation of log q*.")] = 0.8,
    flips: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of votes that are flipped.")] = 0.0,
    seed: int = 0,
) -> None:
    """Write the world's comparisons to a file for any loader or trainer."""
    from unmdpo.lab.shapes import write
    from unmdpo.lab.world import Knobs, World

    knobs = Knobs(prompts=prompts, noise=noise, noise_spread=noise_spread, flips=flips, seed=seed)
    rows = write(out, World(knobs).comparisons(), shape.value)
    say(f"{out}: {rows:,} comparisons")
