"""Finds everything that would stop a run later, before anything is trained, and reports all of it together.

Data is read and panels are drawn first, as stages of the run: they are cheap, and the rest depends on what is in them.
"""

import importlib.util
import netrc
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmdpo.core.errors import UserError
from unmdpo.core.extras import missing
from unmdpo.engine.inference.endpoints import Endpoint, secret_of
from unmdpo.engine.inference.harness import check_tasks
from unmdpo.engine.inference.judges import TrainedJudge, kind_of
from unmdpo.engine.models import check_reachable
from unmdpo.engine.settings import AdapterSettings, ModelSource, TrainingOverrides, TrainingSettings
from unmdpo.execute.checks import (
    JUDGE,
    check_judges,
    check_model,
    check_ranks,
    check_same_tokens,
    judges,
    missing_places,
)
from unmdpo.execute.judge_checks import flattering, judge_functions, judges_data
from unmdpo.execute.plan import Plan, Sizes, plan, too_large
from unmdpo.execute.progress import View
from unmdpo.execute.row_counts import count_rows
from unmdpo.recipe import Recipe
from unmdpo.stages.answers import GENERATION_STAGE
from unmdpo.stages.benchmarks import TASKS_STAGE
from unmdpo.stages.data import COMPARISONS_STAGE, PANEL_STAGE, VALIDATION_STAGE, read_stage
from unmdpo.stages.evaluation import JUDGEMENT_STAGE
from unmdpo.stages.pilots import PILOT_STAGE
from unmdpo.stages.pipeline import Pipeline
from unmdpo.stages.policies import POLICY_STAGE
from unmdpo.store.store import Store

DATA = (COMPARISONS_STAGE, VALIDATION_STAGE, PANEL_STAGE)
WANDB_HOST = "api.wandb.ai"
ANY = Sizes(np.ones((1, 3), dtype=np.int32), 1, [])  # memory and disk do not depend on the data


def look_ahead(run: Pipeline, wanted: Sequence[str], view: View, *, reading: bool = True) -> list[str]:
    """Raises one error with all problems; returns the stages that were made on the way. With `reading`, data is read
    in this process; elsewhere, its stages come first anyway."""
    crowded, slow = too_many_ranks(run, wanted) if reading else ([], [])
    problems = [*outside(run, wanted), *crowded]
    if problems:  # nothing is written for a recipe that cannot run
        with tempfile.TemporaryDirectory() as aside:
            elsewhere = replace(run, store=Store(Path(aside)))
            refuse([*problems, *(_of_data(elsewhere, wanted, View())[1] if reading else [])])
    made, problems = _of_data(run, wanted, view) if reading else ([], [])
    refuse(problems)
    counted = count_rows(run) if made else None
    if counted is not None:
        view.noted(f"data: {counted.line()}")
    problems, warnings = room(run, wanted)
    refuse(problems)
    for warning in [*slow, *warnings, *flattering(run, wanted)]:
        view.noted(warning)
    return made


def _of_data(run: Pipeline, wanted: Sequence[str], view: View) -> tuple[list[str], list[str]]:
    run.store.prepare()
    made, problems = read_data(run, wanted, view)
    return made, problems + too_few(run, wanted) + judges_data(run, wanted) + judge_functions(run, wanted)


def outside(run: Pipeline, wanted: Sequence[str]) -> list[str]:
    """What is wrong with what lies outside the store: files, models, judges, packages. Judges are only looked at if
    something will be judged: they may not exist yet while policies are trained."""
    judging = any(run.stages[name].kind is JUDGEMENT_STAGE for name in wanted)
    absent = {key: path for key, path in missing_places(run.recipe).items() if judging or not key.startswith(JUDGE)}
    found = [f"{key}: there is no file or folder '{path}'" for key, path in absent.items()]
    found += missing_packages(run.recipe, judging)
    checks: list[Callable[[], object]] = [partial(check_ranks, run.recipe), partial(check_login, run.recipe)]
    if any(run.stages[name].kind is GENERATION_STAGE and run.find(run.stages[name]) is None for name in wanted):
        checks += [partial(secret_of, server) for server in _servers(run.recipe)]
    models = {"model.path": run.recipe.model, "pilots.model.path": run.recipe.pilots.model}
    reference = run.recipe.reference
    models |= {f"evaluation.answers.{name}.path": model for name, model in _models_elsewhere(run.recipe).items()}
    for key, model in models.items():
        if model is not None and key not in absent:
            checks.append(partial(check_model, model))
    if isinstance(reference, ModelSource) and not absent.keys() & {"model.path", "reference.path"}:
        checks += [partial(check_reachable, reference), partial(check_same_tokens, run.recipe.model, reference)]
    for key, check in check_judges(run.recipe):
        if (judging or not key.startswith(JUDGE)) and not any(other.startswith(f"{key}.") for other in absent):
            checks.append(check)
    if any(run.stages[name].kind is TASKS_STAGE and run.find(run.stages[name]) is None for name in wanted):
        evaluation = run.recipe.evaluation
        assert evaluation is not None
        checks.append(partial(check_tasks, [*evaluation.tasks], evaluation.task_folder))
    return [*found, *_problems(checks)]


def too_many_ranks(run: Pipeline, wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """A problem if ranks have no GPU of their own; a warning if there are no GPUs at all, and not enough cores."""
    ranks = {name: run.ranks(run.stages[name]) for name in wanted if run.find(run.stages[name]) is None}
    most = max(ranks, key=lambda name: ranks[name], default="")
    gpus, cores = torch.cuda.device_count() if torch.cuda.is_available() else 0, os.cpu_count() or 1
    if ranks.get(most, 1) <= (gpus or cores):
        return [], []
    if gpus:
        return [f"{most} wants {ranks[most]} ranks, but this machine has {gpus} GPUs"], []
    return [], [f"{most} wants {ranks[most]} ranks, and there are {cores} CPU cores to share"]


def _models_elsewhere(recipe: Recipe) -> dict[str, ModelSource]:
    """Models that were trained elsewhere, and are judged here."""
    given = {} if recipe.evaluation is None else recipe.evaluation.answers
    return {name: model for name, model in given.items() if isinstance(model, ModelSource)}


def _problems(checks: Sequence[Callable[[], object]]) -> Iterator[str]:
    for check in checks:
        try:
            check()
        except UserError as error:
            yield str(error)


def missing_packages(recipe: Recipe, judging: bool) -> list[str]:
    """What must be installed for the recipe's settings."""
    trainings: list[TrainingSettings | TrainingOverrides] = [recipe.training, recipe.pilots]
    trainings += [policy.training for policy in recipe.policies.values()]
    adapters = [training.adapter for training in trainings if isinstance(training.adapter, AdapterSettings)]
    used = [judge for key, judge in judges(recipe).items() if judging or not key.startswith(JUDGE)]
    asked = any(kind_of(judge).pairwise for judge in used) or any(_servers(recipe))
    adapted = any(isinstance(judge, TrainedJudge) and judge.train.lora for judge in used)
    needed = {
        ("peft", "lora", "an adapter"): bool(adapters) or adapted,
        ("bitsandbytes", "qlora", "adapter.four_bit"): any(adapter.four_bit for adapter in adapters),
        ("openai", "endpoint", "an endpoint"): asked,
        ("tensorboard", "tensorboard", "logging.tensorboard"): recipe.logging.tensorboard is not None,
        ("wandb", "wandb", "logging.wandb"): recipe.logging.wandb is not None,
    }
    return [
        missing(what, extra)
        for (module, extra, what), is_needed in needed.items()
        if is_needed and importlib.util.find_spec(module) is None
    ]


def _servers(recipe: Recipe) -> list[Endpoint]:
    """That answer prompts."""
    evaluation = recipe.evaluation
    named = [] if evaluation is None else [evaluation.generator, *evaluation.answers.values()]
    if recipe.pairs is not None:
        named.append(recipe.pairs.generator)
    return [server for server in named if isinstance(server, Endpoint)]


def check_login(recipe: Recipe) -> None:
    """W&B without a key would wait for one to be typed."""
    if recipe.logging.wandb is None or os.environ.get("WANDB_API_KEY"):
        return
    try:
        known = netrc.netrc().authenticators(WANDB_HOST) is not None
    except (OSError, netrc.NetrcParseError):
        known = False
    if not known and os.environ.get("WANDB_MODE") not in ("offline", "disabled", "dryrun"):
        raise UserError("logging.wandb: run `wandb login`, or set WANDB_API_KEY, or WANDB_MODE=offline")


def read_data(run: Pipeline, wanted: Sequence[str], view: View) -> tuple[list[str], list[str]]:
    """Reads what is to be trained on and draws panels, if that is not done yet; returns the stages that were made, and
    the problems."""
    made, problems = [], []
    for name in wanted:
        stage = run.stages[name]
        ready = all(run.find(needed) is not None for needed in stage.inputs.values())
        if stage.kind not in DATA or run.find(stage) is not None or not ready:
            continue
        view.started(name)
        began = time.monotonic()
        try:
            run.make(stage, partial(view.progress, name))
        except UserError as error:
            view.failed(name, str(error))
            problems.append(f"{name}: {error}")
        else:
            view.finished(name, time.monotonic() - began)
            made.append(name)
    return made, problems


def too_few(run: Pipeline, wanted: Sequence[str]) -> list[str]:
    """Batches and folds that the data cannot fill."""
    read = run.finished.get(read_stage(run.stages).name)
    if read is None:
        return []
    pairs, prompts, recipe = read.manifest["notes"]["comparisons"], read.manifest["notes"]["prompts"], run.recipe
    found = []
    for name in wanted:
        stage: Any = run.stages[name]
        if stage.kind in (PILOT_STAGE, POLICY_STAGE):
            share = 1 - 1 / recipe.pilots.folds if stage.kind is PILOT_STAGE else 1.0
            batch, count = stage.settings.training.batch, int(share * pairs)
            if count < batch:
                found.append(f"{name}: a batch of {batch} is larger than its {count} training comparisons")
    piloted = any(run.stages[name].kind is PILOT_STAGE for name in wanted)
    if piloted and prompts < recipe.pilots.folds:
        found.append(f"pilots.folds: {recipe.pilots.folds} folds, and {prompts} prompts to put into them")
    return found


def room(run: Pipeline, wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """A problem if the disk cannot hold the models, and warnings about what is only estimated: checkpoints, memory."""
    todo = {name for name in wanted if run.stages[name].kind.uses_model and run.find(run.stages[name]) is None}
    if not todo:
        return [], []
    planned = plan(run, sizes=ANY)
    left = Plan([stage for stage in planned.stages if stage.stage in todo], planned.assumed)
    kept, free = sum(stage.cost.kept for stage in left.stages), _free_disk(run)
    meanwhile = max(stage.cost.disk - stage.cost.kept for stage in left.stages)
    have = f"and {_size(free)} are free: name another place with --store, or free some with `unmdpo rm --unused`"
    if kept > free:
        return [f"{run.store.root}: the trained models need {_size(kept)}, {have}"], []
    warnings = [
        f"{stage.stage} may not fit: it needs about {_size(stage.cost.memory)} on each of {stage.cost.ranks} devices"
        for stage in too_large(left, "this")[:1]
    ]
    if kept + meanwhile > free:
        warnings.append(f"{run.store.root}: models and checkpoints may need {_size(kept + meanwhile)}, {have}")
    return [], warnings


def _free_disk(run: Pipeline) -> int:
    place = run.store.root.resolve()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _size(count: float) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"


def refuse(problems: Sequence[str]) -> None:
    """Raises one error that names all problems."""
    distinct = list(dict.fromkeys(problems))
    if len(distinct) == 1:
        raise UserError(distinct[0])
    if distinct:
        listed = "\n".join(f"- {problem}" for problem in distinct)
        raise UserError(f"{len(distinct)} problems to solve before anything is trained:\n{listed}")
