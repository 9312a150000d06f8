"""Checks what a run needs from outside the store: models, data, judges."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from unmdpo.core.errors import UserError, did_you_mean
from unmdpo.core.files import expand_home
from unmdpo.engine.inference.judges import JudgeSettings, TrainedJudge, kind_of
from unmdpo.engine.models import check_reachable, load_tokenizer
from unmdpo.engine.settings import ModelSource
from unmdpo.engine.text.encode import Encoder
from unmdpo.recipe import Recipe
from unmdpo.scale.table import ESTIMATORS
from unmdpo.stages.evaluation import JUDGEMENT_STAGE
from unmdpo.stages.table import KINDS

JUDGE = "evaluation.judge"


def check_ranks(recipe: Recipe) -> None:
    shared = [kind.name for kind in KINDS.values() if kind.ranked != "never"]
    for name in recipe.compute.ranks_of:
        if name not in shared:
            raise UserError(f"compute.ranks_of: no stages of kind '{name}' have ranks; {did_you_mean(name, shared)}")
    for key, judge in judges(recipe).items():
        kind = kind_of(judge)
        if key.startswith(JUDGE) and not kind.local and recipe.compute.ranks_of.get(JUDGEMENT_STAGE.name, 1) > 1:
            raise UserError(f"a judge of kind '{kind.name}' is asked by one process: leave judgement out of ranks_of")


def judges(recipe: Recipe) -> dict[str, JudgeSettings]:
    """Key in the recipe → judge: those of the evaluation, and those that make training data."""
    named = {} if recipe.evaluation is None else recipe.evaluation.all_judges
    found = {f"{JUDGE}s.{name}" if name else JUDGE: judge for name, judge in named.items()}
    if recipe.data.strength.judge is not None:
        found["data.strength.judge"] = recipe.data.strength.judge
    return found | ({} if recipe.pairs is None else {"pairs.judge": recipe.pairs.judge})


def check_model(source: ModelSource) -> None:
    """Checks that the model can be found and that its tokenizer has a working chat template."""
    check_reachable(source)
    Encoder.of(source).template.prove()


def check_same_tokens(model: ModelSource, reference: ModelSource) -> None:
    """A reference scores the policy's tokens, so they must mean the same to it."""
    if load_tokenizer(model).get_vocab() != load_tokenizer(reference).get_vocab():
        raise UserError(
            f"reference: the tokens of '{reference.path}' are not those of '{model.path}'; a reference needs the same"
        )


def check_judges(recipe: Recipe) -> list[tuple[str, Callable[[], None]]]:
    """What to call for each judge, by its key in the recipe."""
    checks = [(key, kind_of(judge).check, judge) for key, judge in judges(recipe).items()]
    return [(key, partial(check, judge)) for key, check, judge in checks if check is not None]


def check_judge_code(recipe: Recipe) -> None:
    """Checks only judges that need no model, so planning works without a network."""
    for judge in judges(recipe).values():
        kind = kind_of(judge)
        if not kind.local and kind.check is not None:
            kind.check(judge)


def missing_places(recipe: Recipe) -> dict[str, str]:
    """Recipe key → the file or folder it names, for those missing on this machine."""
    models: dict[str, str | None] = {"model.path": recipe.model.path}
    data = {f"data.mix.{name}.path" if name else "data.path": part.path for name, part in recipe.data.parts.items()}
    data["data.validation.path"] = recipe.data.validation.path
    for name, scale in recipe.scales.items():
        read = ESTIMATORS[scale.estimator].files
        data |= {f"scales.{name}.settings.path": path for path in ([] if read is None else read(scale.resolved))}
    if isinstance(recipe.reference, ModelSource):
        models["reference.path"] = recipe.reference.path
    if recipe.pilots.model is not None:
        models["pilots.model.path"] = recipe.pilots.model.path
    for key, judge in judges(recipe).items():
        kind = kind_of(judge)
        if kind.model is not None:
            models[f"{key}.{kind.key}"] = kind.model(judge).path
        if isinstance(judge, TrainedJudge):
            models[f"{key}.train.model"] = judge.train.model
            data[f"{key}.train.path"] = judge.train.path
    data["pairs.prompts"] = None if recipe.pairs is None else recipe.pairs.prompts
    if recipe.evaluation is not None:
        for name, panel in recipe.evaluation.panels.items():
            data[f"evaluation.panels.{name}.path"] = panel.path
        for name, given in recipe.evaluation.answers.items():
            data[f"evaluation.answers.{name}"] = given if isinstance(given, str) else None
            models[f"evaluation.answers.{name}.path"] = given.path if isinstance(given, ModelSource) else None
    named = [(key, path, Path(path)) for key, path in models.items() if path is not None]
    # data paths may start with ~, which model loaders do not expand
    named += [(key, path, expand_home(path)) for key, path in data.items() if path is not None]
    return {key: path for key, path, place in named if not _hub_name(path) and not place.exists()}


def _hub_name(path: str) -> bool:
    """Whether this could be `name` or `owner/name` on the Hub, rather than a local path."""
    return re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", path) is not None and not path.endswith(
        (".jsonl", ".json", ".parquet", ".gz")
    )
