"""What tuning cost: public tasks, run by lm-evaluation-harness on the initial model and on every policy."""

from typing import Any

from unmdpo.core.places import Place
from unmdpo.core.settings import Strict
from unmdpo.engine.inference.harness import harness_version, open_tasks, run_task
from unmdpo.engine.models import load_tokenizer
from unmdpo.engine.settings import ModelSource, TaskSettings
from unmdpo.objectives.table import INITIAL
from unmdpo.stages.answers import policy_of
from unmdpo.stages.policies import policy
from unmdpo.stages.shared.base import Graph, Job, Kind, Notes, Stage
from unmdpo.stages.shared.estimates import Cost, Estimates
from unmdpo.stages.shared.files import TASKS


class TasksSettings(Strict):
    model: ModelSource
    tasks: dict[str, TaskSettings]
    folder: Place | None


def tasks(graph: Graph) -> None:
    """One stage for the initial model, and one for each training of a policy."""
    evaluation, model = graph.recipe.evaluation, graph.recipe.model
    if evaluation is None or not evaluation.tasks:
        return
    settings = TasksSettings(model=model, tasks=evaluation.tasks, folder=evaluation.task_folder)
    for name in (INITIAL, *graph.recipe.trained):
        inputs: dict[str, Stage[Any]] = {} if name == INITIAL else {"policy": policy(graph, name)}
        graph.stage(TASKS_STAGE, settings, inputs, TASKS_STAGE.stage_name(name))


def run_tasks(job: Job[TasksSettings]) -> Notes:
    settings, source = job.settings, job.settings.model
    model, tokenizer = policy_of(job, source), load_tokenizer(source)
    found, manager = dict[str, dict[str, Any]](), open_tasks([*settings.tasks], settings.folder)
    for name, task in settings.tasks.items():
        job.report(f"{name}, task {len(found) + 1} of {len(settings.tasks)}")
        found[name] = run_task(model, tokenizer, source.chat_template or {}, name, task, manager)._asdict()
    job.save(TASKS, found)
    return {"harness": harness_version(), "scores": {name: one["value"] for name, one in found.items()}}


def _cost(estimates: Estimates, stage: Stage[TasksSettings]) -> Cost:
    """Of the model in memory; how long tasks take is not known before."""
    return estimates.reading(stage.settings.model, 0.0)


TASKS_STAGE = Kind("tasks", run_tasks, uses_model=True, cost=_cost, wanted=tasks)
