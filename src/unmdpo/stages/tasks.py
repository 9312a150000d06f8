"""What tuning cost: public tasks, run by lm-evaluation-harness on the initial model and on every policy."""

from typing import Any

from unmdpo.core.places import Place
from unmdpo.engine.inference.harness import harness_version, open_tasks, run_task
from unmdpo.engine.models import load_tokenizer
from unmdpo.engine.settings import ModelSource, TaskSettings
from unmdpo.stages.generation import policy_of
from unmdpo.stages.shared.base import Job, Kind, Notes
from unmdpo.stages.shared.files import TASKS


def run_tasks(job: Job, *, model: ModelSource, tasks: dict[str, TaskSettings], folder: Place | None) -> Notes:
    """Runs tasks by name; those in the `folder` are the user's own."""
    loaded = policy_of(job, model)
    tokenizer = load_tokenizer(model)
    manager = open_tasks([*tasks], folder)
    results: dict[str, dict[str, Any]] = {}
    for name, task in tasks.items():
        job.report(f"{name}, task {len(results) + 1} of {len(tasks)}")
        results[name] = run_task(loaded, tokenizer, model.chat_template or {}, name, task, manager)._asdict()
    job.save(TASKS, results)
    return {"harness": harness_version(), "scores": {name: result["value"] for name, result in results.items()}}


TASKS_STAGE = Kind("tasks", run_tasks, uses_model=True)
