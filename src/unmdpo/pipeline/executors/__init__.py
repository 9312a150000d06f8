"""Running a recipe: what is finished is used; the rest is made here, in processes side by side, or on Ray."""

from collections.abc import Sequence
from typing import Literal

from unmdpo.pipeline.check import check_outside
from unmdpo.pipeline.executors.local import one_by_one, side_by_side
from unmdpo.pipeline.executors.ray import work_on_ray
from unmdpo.pipeline.run import Run
from unmdpo.pipeline.view import View


def execute(
    run: Run,
    *,
    until: str | None = None,
    only: str | None = None,
    force: Sequence[str] = (),
    jobs: int = 1,
    executor: Literal["local", "ray"] = "local",
    view: View | None = None,
) -> Run:
    """Makes what does not exist yet; finished stages are never redone.

    One job works in this process, several in processes of their own; on Ray they run where Ray puts them.
    """
    view = view or View()
    wanted = run.wanted(until, only)
    check_outside(run, wanted)
    for pattern in force:
        for name in run.with_dependents(run.matching(pattern)):
            run.store.remove(run.stages[name].place)
    run.store.prepare()
    run.record()
    missing = [name for name in wanted if run.find(run.stages[name]) is None]
    for name in wanted:
        if name not in missing:
            view.cached(name)
    if executor == "ray":
        work_on_ray(run, missing, view)
    elif jobs > 1:
        side_by_side(run, missing, jobs, view)
    else:
        one_by_one(run, missing, view)
    return run
