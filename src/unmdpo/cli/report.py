"""`unmdpo report`: one page to look at."""

from pathlib import Path
from typing import Annotated

import typer

from unmdpo.cli.run import HERE, Overrides, RecipeArgument, StoreOption


def report(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    store: StoreOption = HERE,
    out: Annotated[Path | None, typer.Option(help="Where to write; default: in the run's folder.")] = None,
) -> None:
    """Write one HTML page about what is finished of a run."""
    from unmdpo.pipeline.lab.demo import truth_of
    from unmdpo.pipeline.run import open_run
    from unmdpo.pipeline.store import Store
    from unmdpo.recipes import load_recipe
    from unmdpo.report import write_report

    run = open_run(load_recipe(recipe, overrides or []), Store(store))
    path = write_report(run, out or run.folder / "report.html", truth_of(run.recipe))
    typer.echo(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
