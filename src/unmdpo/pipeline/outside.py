"""What a run needs from outside the store, told before any work: models, data, a judge."""

import re
from pathlib import Path

from unmdpo.engine.judge import load_function
from unmdpo.engine.models import ModelSource, check_reachable, make_encoder
from unmdpo.errors import UserError
from unmdpo.pipeline.common import model_source
from unmdpo.recipe import Recipe

JUDGE_PATH = "evaluation.judge.path"


def check_outside(recipe: Recipe, judging: bool = True) -> None:
    """What a recipe names and is not there is told before anything is trained: folders, files, a judge,
    unless there will be no judging: a judge may still be in the making while policies are trained."""
    if judging:
        check_judge(recipe)
    for key, path in missing_places(recipe).items():
        if judging or key != JUDGE_PATH:
            raise UserError(f"{key}: there is no file or folder '{path}'")
    for model in [recipe.model, *([] if recipe.pilots.model is None else [recipe.pilots.model])]:
        check_model(model_source(model.model_dump(mode="json")))
    if judging and recipe.evaluation is not None and recipe.evaluation.judge.path is not None:
        check_reachable(ModelSource(recipe.evaluation.judge.path, recipe.evaluation.judge.revision))


def check_model(source: ModelSource) -> None:
    """That it can be had, and that its tokenizer has a chat template that works."""
    check_reachable(source)
    if source.gguf_file is None:  # else it is converted first of all
        make_encoder(source, max_length=1).render([{"role": "user", "content": "?"}], prefix=True)


def check_judge(recipe: Recipe) -> None:
    if recipe.evaluation is not None and recipe.evaluation.judge.function is not None:
        load_function(recipe.evaluation.judge.function)


def missing_places(recipe: Recipe) -> dict[str, str]:
    """Key → the file or folder that it names and that is not on this machine."""
    models: dict[str, str | None] = {"model.path": recipe.model.path}
    data: dict[str, str | None] = {"data.path": recipe.data.path}
    data["data.validation.path"] = recipe.data.validation.path
    if recipe.pilots.model is not None:
        models["pilots.model.path"] = recipe.pilots.model.path
    if recipe.evaluation is not None:
        models[JUDGE_PATH] = recipe.evaluation.judge.path
        for name, panel in recipe.evaluation.panels.items():
            data[f"evaluation.panels.{name}.path"] = panel.path
    local = [(key, path, Path(path)) for key, path in models.items() if path is not None]
    # data may lie below ~, which models' loaders do not know
    local += [(key, path, Path(path).expanduser()) for key, path in data.items() if path is not None]
    return {key: path for key, path, place in local if not _hub_name(path) and not place.exists()}


def _hub_name(path: str) -> bool:
    """Could this be `name` or `owner/name` on the Hub, rather than a place on this machine?"""
    return re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", path) is not None and not path.endswith(
        (".jsonl", ".json", ".parquet", ".gz")
    )
