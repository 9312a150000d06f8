"""Finds everything that would stop a run later, before anything is trained, and reports all of it together.

Data is read and panels are drawn first, as stages of the run: they are cheap, and the rest depends on what is in them.
"""

import importlib.util
import netrc
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from unmdpo.core.errors import UserError
from unmdpo.core.extras import missing
from unmdpo.core.places import Place
from unmdpo.engine.inference.endpoints import Endpoint, secret_of
from unmdpo.engine.inference.harness import check_tasks
from unmdpo.engine.inference.judges import TrainedJudge, kind_of
from unmdpo.engine.models import check_reachable
from unmdpo.engine.settings import AdapterSettings, ModelSource, TrainingOverrides, TrainingSettings
from unmdpo.execute.checks import JUDGE, check_model, check_ranks, check_same_tokens, judges, missing_places
from unmdpo.execute.costs import NO_PAIRS
from unmdpo.execute.judge_checks import judge_functions, judges_data, overlapping_judge_data
from unmdpo.execute.plan import Plan, Sizes, plan, too_large
from unmdpo.execute.progress import View
from unmdpo.recipe import Recipe
from unmdpo.stages.comparisons import COMPARISONS_STAGE, read_stage
from unmdpo.stages.generation import GENERATION_STAGE
from unmdpo.stages.judgement import JUDGEMENT_STAGE
from unmdpo.stages.panel import PANEL_STAGE
from unmdpo.stages.pilot import PILOT_STAGE
from unmdpo.stages.pipeline import Pipeline
from unmdpo.stages.policy import POLICY_STAGE
from unmdpo.stages.shared.base import Kind
from unmdpo.stages.tasks import TASKS_STAGE
from unmdpo.store.store import Store

DATA = (COMPARISONS_STAGE, PANEL_STAGE)
WANDB_HOST = "api.wandb.ai"
ANY = Sizes(NO_PAIRS, 1, [])  # memory and disk do not depend on the data


@dataclass(frozen=True)
class Findings:
    problems: list[str] = field(default_factory=list)  # that would stop the run
    warnings: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)  # stages that were made on the way


def look_ahead(
    run: Pipeline, wanted: Sequence[str], view: View, *, reading: bool = True, planning: bool = False
) -> Findings:
    """All problems of a run. With `reading`, data is read in this process; elsewhere, its stages come first anyway.
    When `planning`, what only the Hub could say is a warning, and nothing is read from there."""
    problems, warnings = outside(run, wanted, planning)
    if reading:
        crowded, slow = too_many_ranks(run, wanted)
        problems += crowded
        warnings += slow
    if planning and any(part.place.local is None for part in run.recipe.data.parts.values()):
        warnings.append("the data is not read for a plan, since it is on the Hub")
        reading = False
    if problems:  # nothing is written for a recipe that cannot run
        if reading:
            with tempfile.TemporaryDirectory() as aside:
                problems += _of_data(replace(run, store=Store(Path(aside))), wanted, View())[1]
        return Findings(problems, warnings)
    made, problems = _of_data(run, wanted, view) if reading else ([], [])
    if problems:
        return Findings(problems, warnings, made)
    problems, tight = room(run, wanted)
    if planning:  # perhaps for another machine
        problems, tight = [], [*problems, *tight]
    return Findings(problems, [*warnings, *tight, *overlapping_judge_data(run, wanted)], made)


def _of_data(run: Pipeline, wanted: Sequence[str], view: View) -> tuple[list[str], list[str]]:
    run.store.prepare()
    made, problems = read_data(run, wanted, view)
    return made, problems + too_few(run, wanted) + judges_data(run, wanted) + judge_functions(run, wanted)


class Check(NamedTuple):
    """Something to call, which raises what is wrong."""

    call: Callable[[], object]
    place: Place | None = None  # that it looks at


def outside(run: Pipeline, wanted: Sequence[str], planning: bool = False) -> tuple[list[str], list[str]]:
    """What is wrong with what lies outside the store: files, models, judges, packages. Judges are only looked at if
    something will be judged: they may not exist yet while policies are trained. When `planning`, what the Hub does not
    say is a warning."""
    recipe = run.recipe
    unfinished = [run.stages[name] for name in wanted if run.find(run.stages[name]) is None]
    judging = any(run.stages[name].kind is JUDGEMENT_STAGE for name in wanted)
    absent = {key: path for key, path in missing_places(recipe).items() if judging or not key.startswith(JUDGE)}
    problems = [f"{key}: there is no file or folder '{path}'" for key, path in absent.items()]
    problems += missing_packages(recipe, judging)
    warnings: list[str] = []
    for check in _checks(recipe, absent, judging, {stage.kind for stage in unfinished}):
        try:
            check.call()
        except UserError as error:
            is_remote = check.place is not None and check.place.local is None
            (warnings if planning and is_remote else problems).append(str(error))
    return problems, warnings


def _checks(recipe: Recipe, absent: Collection[str], judging: bool, kinds: Collection[Kind]) -> Iterator[Check]:
    """`absent` are keys whose files are missing, `kinds` those of stages that are still to be done."""
    yield Check(partial(check_ranks, recipe))
    yield Check(partial(check_login, recipe))
    if GENERATION_STAGE in kinds:
        yield from (Check(partial(secret_of, server)) for server in _servers(recipe))
    models = {"model.path": recipe.model, "pilots.model.path": recipe.pilots.model}
    models |= {f"evaluation.answers.{name}.path": model for name, model in _models_elsewhere(recipe).items()}
    for key, model in models.items():
        if model is not None and key not in absent:
            yield Check(partial(check_model, model), model.path)
    reference = recipe.reference
    if isinstance(reference, ModelSource) and "model.path" not in absent and "reference.path" not in absent:
        yield Check(partial(check_reachable, reference), reference.path)
        yield Check(partial(check_same_tokens, recipe.model, reference), reference.path)
    for key, judge in judges(recipe).items():
        check = kind_of(judge).check
        is_looked_at = judging or not key.startswith(JUDGE)
        if check is not None and is_looked_at and not any(other.startswith(f"{key}.") for other in absent):
            yield Check(partial(check, judge), getattr(judge, "path", None))
    if TASKS_STAGE in kinds:
        assert recipe.evaluation is not None
        yield Check(partial(check_tasks, [*recipe.evaluation.tasks], recipe.evaluation.task_folder))


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
    todo = {name for name in wanted if run.find(run.stages[name]) is None}
    stages = [stage for stage in plan(run, sizes=ANY).stages if stage.name in todo]
    costs = {stage.name: stage.cost for stage in stages if stage.cost is not None}
    if not costs:
        return [], []
    kept = sum(cost.kept for cost in costs.values())
    meanwhile = max(cost.disk - cost.kept for cost in costs.values())
    free = _free_disk(run)
    have = f"and {_size(free)} are free: name another place with --store, or free some with `unmdpo rm --unused`"
    if kept > free:
        return [f"{run.store.root}: the trained models need {_size(kept)}, {have}"], []
    warnings = [
        f"{stage.name} may not fit: it needs about {_size(costs[stage.name].memory)} on each of "
        f"{costs[stage.name].ranks} devices"
        for stage in too_large(Plan(stages, []), "this")[:1]
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
