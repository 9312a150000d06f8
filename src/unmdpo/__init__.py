"""Preference optimization with strength margins and a learned prompt scale."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmdpo.version import __version__

if TYPE_CHECKING:
    from unmdpo.recipe import Recipe
    from unmdpo.results.run import Run

__all__ = ["__version__", "run"]


def run(
    recipe: "str | Path | dict[str, Any] | Recipe",
    *overrides: str,
    store: str | Path = "unmdpo-store",
    until: str | None = None,
    jobs: int = 1,
    force: Sequence[str] = (),
    progress: "bool | Callable[[dict[str, Any]], object]" = False,
) -> "Run":
    """Runs a recipe (a packaged name, a YAML file, a dictionary, or one that is loaded) and returns the finished run.

    `jobs` stages run at once, each in its own process if there are several; `force` names stages to run again;
    with `progress`, bars are drawn on a terminal and in a notebook, and lines are printed elsewhere; or it is a
    function to be called with every event, as `unmdpo run --json` prints them.
    """
    from unmdpo.execute import execute  # noqa: PLC0415
    from unmdpo.execute.board import Output, shown_progress  # noqa: PLC0415 - `import unmdpo` stays light
    from unmdpo.execute.progress import Events  # noqa: PLC0415
    from unmdpo.recipe import Recipe, load_recipe, parse_recipe  # noqa: PLC0415
    from unmdpo.results.run import open_run  # noqa: PLC0415
    from unmdpo.store.store import Store  # noqa: PLC0415

    given = recipe.model_dump() if isinstance(recipe, Recipe) else recipe
    described = parse_recipe(given, overrides) if isinstance(given, dict) else load_recipe(str(given), overrides)
    opened = open_run(described, Store(Path(store)))
    if callable(progress):
        return execute(opened, until=until, jobs=jobs, force=force, view=Events(progress))
    with shown_progress(len(opened.wanted(until)), Output.usual if progress else Output.quiet) as view:
        return execute(opened, until=until, jobs=jobs, force=force, view=view)
