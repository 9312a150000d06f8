"""What tuning cost: each policy's scores on public tasks, and how they differ from the initial model's."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from unmdpo.objectives.table import INITIAL
from unmdpo.stages.pipeline import Pipeline
from unmdpo.stages.shared.files import TASKS
from unmdpo.stages.tasks import TASKS_STAGE
from unmdpo.stats.evaluation import Estimate
from unmdpo.stats.few_seeds import margin_of_mean


class TaskResult(NamedTuple):
    task: str
    metric: str
    policy: str
    value: float  # the mean over seeds; in percent if it is a share
    change: Estimate | None  # from the initial model; None: not the same questions, or the metric is no mean over them
    share: bool = True
    higher_is_better: bool = True

    @property
    def lost(self) -> bool:
        """Whether it is worse than the initial model, for sure."""
        return self.change is not None and (self.change.high < 0 if self.higher_is_better else self.change.low > 0)


def task_results(run: Pipeline) -> list[TaskResult]:
    """Of everybody whose tasks are finished, the initial model first; nothing before that is finished."""
    made = {
        name: TASKS.load(artifact)
        for name, stage in run.stages.items()
        if stage.kind is TASKS_STAGE and (artifact := run.find(stage)) is not None
    }
    initial = made.get(TASKS_STAGE.stage_name(INITIAL))
    if initial is None:
        return []
    found = list[TaskResult]()
    for task, start in initial.items():
        values = start["samples"].values()
        share = bool(values) and min(values) >= 0 and max(values) <= 1
        unit, kind = (100 if share else 1), (share, start["higher_is_better"])
        found.append(TaskResult(task, start["metric"], INITIAL, unit * start["value"], None, *kind))
        for policy in run.recipe.policies:
            names = [TASKS_STAGE.stage_name(one.name) for one in run.recipe.runs[policy]]
            scores = [made[name][task] for name in names if name in made]
            if len(scores) == len(names):
                value = unit * float(np.mean([score["value"] for score in scores]))
                found.append(TaskResult(task, start["metric"], policy, value, _change(start, scores, unit), *kind))
    return found


def _change(start: Mapping[str, Any], scores: Sequence[Mapping[str, Any]], unit: float) -> Estimate | None:
    """The paired difference: the same questions, each seed against the initial model. The interval is that of two more
    questions, one won and one lost, so that few questions without any difference are no proof (Agresti and Min
    2005)."""
    questions = [*start["samples"]]
    same = all((score["made_with"], {*score["samples"]}) == (start["made_with"], {*questions}) for score in scores)
    if not questions or not same:
        return None
    before, after = (
        unit * np.array([[score["samples"][name] for name in questions] for score in some])
        for some in ([start], scores)
    )  # (1, questions), (seeds, questions)
    differences, most = after - before, max(100.0 if unit == 100 else 0.0, np.ptp([*before.flat, *after.flat]))
    more = np.broadcast_to([most, -most], (len(differences), 2))
    value, margin = float(differences.mean()), margin_of_mean(np.hstack([differences, more]))
    return Estimate(value, value - margin, value + margin)


def losses(run: Pipeline) -> list[str]:
    """A sentence for each task that a policy does worse for sure; the table has all of them."""
    return [
        f"{one.task} ({one.metric}): {one.policy} lost {abs(change.value):.1f}{' points' if one.share else ''}, from "
        f"{one.value - change.value:.1f} to {one.value:.1f} (95 % interval {change.low:+.1f} to {change.high:+.1f})"
        for one in task_results(run)
        if (change := one.change) is not None and one.lost
    ]
