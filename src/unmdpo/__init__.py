"""Preference optimization with strength margins and a learned prompt scale."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmdpo.version import __version__

if TYPE_CHECKING:
    from unmdpo.pipeline.run import Run

__all__ = ["__version__", "run"]


def run(
    recipe: "str | Path | dict[str, Any]",
    *overrides: str,
    store: str | Path = "unmdpo-store",
    until: str | None = None,
    jobs: int = 1,
    force: Sequence[str] = (),
    progress: bool = False,
) -> "Run":
    """Runs a recipe (a packaged name, a YAML file, or a dictionary) and returns the finished run.

    `jobs` stages run at once, each in its own process if there are several; `force` names stages to run again;
    `progress` prints a line for every stage.
    """
    from unmdpo.pipeline.executors import execute  # noqa: PLC0415 - `import unmdpo` stays light
    from unmdpo.pipeline.run import open_run  # noqa: PLC0415
    from unmdpo.pipeline.store import Store  # noqa: PLC0415
    from unmdpo.pipeline.view import Lines  # noqa: PLC0415
    from unmdpo.recipe import load_recipe, parse_recipe  # noqa: PLC0415

    described = parse_recipe(recipe, overrides) if isinstance(recipe, dict) else load_recipe(str(recipe), overrides)
    view = Lines() if progress else None
    return execute(open_run(described, Store(Path(store))), until=until, jobs=jobs, force=force, view=view)
