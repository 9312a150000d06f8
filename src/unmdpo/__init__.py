"""Preference optimization with strength margins and a learned prompt scale."""

import os
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
    store: str | Path | None = None,
    until: str | None = None,
    jobs: int | None = 1,
    force: Sequence[str] = (),
    progress: "bool | Callable[[dict[str, Any]], object]" = False,
) -> "Run":
    """Runs a recipe (a packaged name, a YAML file, a dictionary, or one that is loaded) and returns the finished run.

    `jobs` stages run at once, each in its own process if there are several, and as many as the machine has room for if
    it is None; `force` names stages to run again; with `progress`, bars are drawn on a terminal and in a notebook, and
    lines are printed elsewhere; or it is a function to be called with every event, as `unmdpo run --json` prints them.
    The store is UNMDPO_STORE, or `unmdpo-store` here, unless it is named. Ctrl-C is a KeyboardInterrupt: the same call
    goes on where it stopped.
    """
    from unmdpo.core.errors import Stopped  # noqa: PLC0415
    from unmdpo.execute import execute  # noqa: PLC0415
    from unmdpo.execute.board import Output, shown_progress  # noqa: PLC0415 - `import unmdpo` stays light
    from unmdpo.execute.progress import Events  # noqa: PLC0415
    from unmdpo.recipe import Recipe, load_recipe, parse_recipe  # noqa: PLC0415
    from unmdpo.results.run import open_run  # noqa: PLC0415
    from unmdpo.store.store import Store  # noqa: PLC0415

    given = recipe.model_dump() if isinstance(recipe, Recipe) else recipe
    described = parse_recipe(given, overrides) if isinstance(given, dict) else load_recipe(str(given), overrides)
    opened = open_run(described, Store(_store(store)))
    try:
        if callable(progress):
            return execute(opened, until=until, jobs=jobs, force=force, view=Events(progress))
        with shown_progress(len(opened.wanted(until)), Output.usual if progress else Output.quiet) as view:
            return execute(opened, until=until, jobs=jobs, force=force, view=view)
    except Stopped:
        raise KeyboardInterrupt("stopped; what is done is kept, and the same call goes on from there") from None


def _store(given: "str | Path | None") -> Path:
    return Path(os.environ.get("UNMDPO_STORE", "unmdpo-store") if given is None else given).absolute()


def train(
    model: "str | Path | PreTrainedModel",
    dataset: "str | Path | Iterable[Mapping[str, Any]]",
    *,
    objective: str = "dpo",
    scale: str | None = None,
    settings: Mapping[str, Any] | None = None,
    tokenizer: "PreTrainedTokenizerBase | str | Path | None" = None,
    store: str | Path | None = None,
    jobs: int | None = 1,
    progress: "bool | Callable[[dict[str, Any]], object]" = True,
    **sections: Any,
) -> "Policy":
    """Trains one policy and returns it: a folder for `from_pretrained`, which also answers (`generate`).

        rows = [{"prompt": "Why?", "chosen": "Because.", "rejected": "No.", "strength": 2}, ...]
        policy = unmdpo.train("HuggingFaceTB/SmolLM2-135M-Instruct", rows, objective="ulnm-wr")
        policy.generate(["Why is the sky blue?"])

    `model` is a Hub name, a folder, or a model that Transformers loaded; `dataset` a Hub name, a file, or rows, such
    as a `datasets.Dataset`. `scale` names an estimator, for objectives with a prompt scale; by default, the one that
    does best on unseen prompts; `settings` are the objective's own. Everything else follows from model and data, as in
    the recipe that `unmdpo init` writes, unless you name `sections` of a recipe.

        unmdpo.train(model, rows, beta=0.1, training={"learning_rate": 1e-5, "epochs": 1, "adapter": {"rank": 16}})
        unmdpo.train(model, rows, objective="cdpo", settings={"flips": 0.1})  # TRL's label_smoothing
        unmdpo.train(model, rows, data={"validation": {"fraction": 0.1}}, training={"validate_updates": 25})

    The losses of all updates, and what validations found (`eval_…`), are in `policy.parent / "metrics.jsonl"`; with
    `progress=function`, every event has the latest one. The same call again returns the finished policy, or goes on
    where it was stopped. `unmdpo runs` lists what a store holds, `unmdpo rm` and `unmdpo rm --unused` remove it.
    """
    from contextlib import nullcontext  # noqa: PLC0415

    from unmdpo.data.sources.preference import strengths_come_later  # noqa: PLC0415
    from unmdpo.integrations.training import POLICY, needs_strengths, recipe_of  # noqa: PLC0415

    place = _store(store)
    with nullcontext() if needs_strengths(objective) else strengths_come_later():  # to others, none is no news
        recipe = recipe_of(model, dataset, objective, scale, tokenizer, place, settings, sections)
        done = run(recipe, store=place, until=f"policy[{POLICY}]", jobs=jobs, progress=progress)
    return done.policy(POLICY)
