"""Runs a recipe. Finished stages are reused; the rest run in this process, in parallel processes, or on Ray."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from unmdpo.core.errors import Stopped
from unmdpo.engine.ranks import Ranks
from unmdpo.execute.driver import Driver
from unmdpo.execute.local import LocalPool, ThisProcess, default_jobs
from unmdpo.execute.preflight import look_ahead, refuse
from unmdpo.execute.progress import View
from unmdpo.execute.ranks import all_together, inside_torchrun, join_torchrun
from unmdpo.execute.ray import RayPool
from unmdpo.execute.row_counts import count_rows
from unmdpo.stages.opening import latest_record
from unmdpo.stages.pipeline import Pipeline

P = TypeVar("P", bound=Pipeline)


def execute(
    run: P,
    *,
    until: str | None = None,
    only: str | None = None,
    force: Sequence[str] = (),
    jobs: int | None = 1,
    executor: Literal["local", "ray"] = "local",
    view: View | None = None,
) -> P:
    """Runs the stages that are not finished yet; finished ones are redone only with `force`, and what depends on them
    follows if their result is another.

    With one job, stages run in this process; with several, in separate processes, and without a number, as many as the
    machine has room for; with Ray, wherever Ray puts them; inside a `torchrun` job, on its ranks.
    """
    view = view or View()
    ranks = join_torchrun(run) if inside_torchrun() else Ranks()
    if force:
        mark = ranks.share(uuid.uuid4().hex)  # the first rank's
        run = replace(run, forced={name: mark for pattern in force for name in run.matching(pattern)})
    wanted = run.wanted(until, only)
    findings = look_ahead(run, wanted, view, reading=executor == "local" and not inside_torchrun())
    refuse(findings.problems)
    counted = count_rows(run) if findings.made else None
    for note in [*([] if counted is None else [f"data: {counted.line()}"]), *findings.warnings]:
        view.noted(note)
    if ranks.first:
        run.store.prepare()
        for remark in run.remarks:
            view.noted(remark)
        earlier = latest_record(run.recipe, run.store)
        if earlier is not None and not run.folder.exists():
            view.noted(f"a run of this recipe with other files is kept as {earlier.name}; `unmdpo rm` removes it")
        run.record()
        run.store.tidy(run.stages[name].place for name in wanted)
    ranks.wait()
    missing = ranks.share([name for name in wanted if run.find(run.stages[name]) is None])
    for name in wanted:
        if name not in missing and name not in findings.made:
            view.cached(name)
    if inside_torchrun():
        all_together(run, missing, view)
    elif missing:
        _drive(run, missing, jobs, executor, view)
    return run


def _drive(run: Pipeline, missing: Sequence[str], jobs: int | None, executor: str, view: View) -> None:
    jobs = jobs or (default_jobs(run) if executor == "local" else 1)
    if executor == "local" and jobs == 1:
        Driver(run, missing, ThisProcess(run, view), view).work()
        return
    try:
        with RayPool(run) if executor == "ray" else LocalPool(run, jobs) as pool:
            Driver(run, missing, pool, view).work()
    except (KeyboardInterrupt, Stopped):
        view.noted("stopping: running stages save their progress")
        raise
