"""Preference optimization with strength margins and a learned prompt scale."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmdpo.version import __version__

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from unmdpo.recipe import Recipe
    from unmdpo.results.policy import Policy
    from unmdpo.results.run import Run

__all__ = ["__version__", "run", "train"]


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


def train(
    model: "str | Path | PreTrainedModel",
    dataset: "str | Path | Iterable[Mapping[str, Any]]",
    *,
    objective: str = "dpo",
    scale: str | None = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    store: str | Path = "unmdpo-store",
    jobs: int = 1,
    progress: "bool | Callable[[dict[str, Any]], object]" = True,
    **settings: Any,
) -> "Policy":
    """Trains one policy and returns it: a folder for `from_pretrained`, which also answers (`generate`).

        rows = [{"prompt": "Why?", "chosen": "Because.", "rejected": "No.", "strength": 2}, ...]
        policy = unmdpo.train("HuggingFaceTB/SmolLM2-135M-Instruct", rows, objective="ulnm-wr")
        policy.generate(["Why is the sky blue?"])

    `model` is a Hub name, a folder, or a model that Transformers loaded; `dataset` a Hub name, a file, or rows, such
    as a `datasets.Dataset`. `scale` names an estimator, for objectives with a prompt scale; by default, the one that
    does best on unseen prompts. Everything else follows from model and data, as in the recipe that `unmdpo init`
    writes, unless `settings` say otherwise: they are sections of a recipe, such as
    `training={"learning_rate": 1e-5, "epochs": 1}`. The same call again returns the finished policy.
    """
    from unmdpo.integrations.training import POLICY, recipe_of  # noqa: PLC0415

    recipe = recipe_of(model, dataset, objective, scale, tokenizer, Path(store), settings)
    return run(recipe, store=store, jobs=jobs, progress=progress).policy(POLICY)
