"""Preference optimization with strength margins and a learned prompt scale."""

from pathlib import Path
from typing import TYPE_CHECKING

from unmdpo.version import __version__

if TYPE_CHECKING:
    from unmdpo.pipeline.run import Run

__all__ = ["__version__", "run"]


def run(recipe: str | Path, *overrides: str, store: str | Path = "unmdpo-store", until: str | None = None) -> "Run":
    """Runs a recipe (a packaged name or a YAML file) and returns the finished run."""
    from unmdpo.pipeline.executors import execute  # noqa: PLC0415 - `import unmdpo` stays light
    from unmdpo.pipeline.run import open_run  # noqa: PLC0415
    from unmdpo.pipeline.store import Store  # noqa: PLC0415
    from unmdpo.recipe import load_recipe  # noqa: PLC0415

    return execute(open_run(load_recipe(str(recipe), [*overrides]), Store(Path(store))), until=until)
