"""Runs an experiment of the lab: every point with several seeds.

Every point is an ordinary run of a smaller demo recipe, and all share one store: an interrupted sweep resumes, and
points shared by two experiments run only once. These runs are small, so with several jobs whole runs go side by side,
each in one process.
"""

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from scipy.stats import t as students_t

from benchmarks.lab.table import Experiment, Point
from unmdpo.core.errors import UserError
from unmdpo.core.processes import end_with_parent, fork_server, main_hidden
from unmdpo.execute import execute
from unmdpo.lab.demo import WORLD, demo_recipe
from unmdpo.lab.world import Knobs
from unmdpo.recipe import Recipe
from unmdpo.results.run import open_run
from unmdpo.stats.evaluation import Estimate
from unmdpo.store.store import Store

SMALL = replace(WORLD, prompts=800)
BUDGET = ("training.updates=50", "pilots.updates=50")


@dataclass(frozen=True)
class Result:
    """One measure at one point, for every seed."""

    point: Point
    chart: str
    series: str
    values: list[float]

    @property
    def estimate(self) -> Estimate:
        """Mean over seeds with Student's 95 % interval."""
        values = np.array(self.values)
        mean = float(values.mean())
        if len(values) < 2:
            return Estimate(mean, mean, mean)
        half = float(students_t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
        return Estimate(mean, mean - half, mean + half)


@dataclass(frozen=True)
class Task:
    """One point with one seed."""

    name: str
    recipe: Recipe
    store: Path
    until: str | None

    def run(self) -> "Task":
        execute(open_run(self.recipe, Store(self.store)), until=self.until)
        return self


def sweep(
    chosen: Experiment,
    folder: Path,
    seeds: Sequence[int],
    jobs: int,
    knobs: Knobs = SMALL,
    budget: Sequence[str] = BUDGET,
    report: Callable[[str], None] = print,
) -> Iterator[Result]:
    """Runs every point with every seed, and yields the measures point by point."""

    def task(point: Point, seed: int) -> Task:
        turned = replace(knobs, **{**chosen.knobs, **point.knobs}, seed=seed)
        overrides = [f"seed={seed}", *budget, *chosen.overrides, *point.overrides]
        recipe = demo_recipe(folder / "worlds" / _name_of(turned), turned, overrides)
        return Task(f"{chosen.knob}: {point.label}, seed {seed}", recipe, folder / "store", chosen.until)

    done = _all_done([task(point, seed) for point in chosen.points for seed in seeds], jobs, report)
    for point in chosen.points:
        runs = [open_run(one.recipe, Store(one.store)) for one in islice(done, len(seeds))]
        for chart, series in chosen.measures.items():
            for name, measure in series.items():
                values = [measure(run) for run in runs]
                if np.isfinite(values).all():  # a rank correlation is undefined if q* is constant
                    yield Result(point, chart, name, values)


def _all_done(tasks: Sequence[Task], jobs: int, report: Callable[[str], None]) -> Iterator[Task]:
    """Yields tasks in order, each when it is finished."""

    def told(finished: Iterator[Task]) -> Iterator[Task]:
        for number, task in enumerate(finished, start=1):
            report(f"{number} of {len(tasks)}: {task.name}")
            yield task

    if jobs == 1:
        yield from told(task.run() for task in tasks)
        return
    others = multiprocessing.active_children()  # of the caller, and none of our business
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), fork_server("unmdpo.execute.workers"), _get_ready)
    try:
        with main_hidden():
            waited_for = [pool.submit(task.run) for task in tasks]
        yield from told(future.result() for future in waited_for)
    except BrokenProcessPool as error:
        raise UserError("the process of a run was killed, perhaps for want of memory; try fewer --jobs") from error
    finally:  # of all, or of those that nobody waits for anymore
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            if process not in others:
                process.terminate()


def _get_ready() -> None:
    """One core for each; and none goes on for a sweep that was killed."""
    torch.set_num_threads(1)
    end_with_parent()


def _name_of(knobs: Knobs) -> str:
    """The name of a world's folder: equal knobs give equal worlds."""
    return hashlib.sha256(json.dumps(vars(knobs), sort_keys=True).encode()).hexdigest()[:12]
