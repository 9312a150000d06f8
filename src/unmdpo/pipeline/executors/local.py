"""Runs stages on this machine: one after another in this process, or in parallel in separate processes, which release
memory and devices when they end.

Processes are forked from a server that has imported everything heavy once, so a stage starts quickly.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from unmdpo.errors import Stopped, UnmdpoWarning, UserError, stop
from unmdpo.pipeline.executors.making import make_here, raise_failures, ready_stages
from unmdpo.pipeline.executors.ranks import launch
from unmdpo.pipeline.run import Run, open_run, ranks_of
from unmdpo.pipeline.stage import Stage
from unmdpo.pipeline.store import Store
from unmdpo.pipeline.view import View
from unmdpo.recipe import Recipe

POLL, PATIENCE = 0.05, 300.0  # seconds; PATIENCE: how long a stopped stage may take to write its checkpoint


@dataclass
class _Worker:
    stage: str
    slot: int
    process: BaseProcess
    began: float


def most_ranks(recipe: Recipe) -> int:
    return max([recipe.compute.ranks, *recipe.compute.ranks_of.values()])


def default_jobs(ranks: int = 1) -> int:
    """As many stages at once as there are GPUs, or cores if there are none, divided by the ranks of a stage."""
    return max(1, (torch.cuda.device_count() or len(os.sched_getaffinity(0))) // ranks)


def make(run: Run, stage: Stage[Any], report: Callable[[str], None]) -> None:
    """Runs one stage whose inputs are finished; over several ranks if the recipe asks and the stage can."""
    if ranks_of(run, stage) > 1:
        launch(run, stage, report)
    else:
        make_here(run, stage, report)


def one_by_one(run: Run, missing: Sequence[str], view: View) -> None:
    for name in missing:
        began = time.monotonic()
        view.started(name)
        make(run, run.stages[name], partial(view.progress, name))
        view.finished(name, time.monotonic() - began)


def side_by_side(run: Run, missing: Sequence[str], jobs: int, view: View) -> None:
    """Runs the missing stages, each as soon as its inputs are finished. If one fails, those that do not need it
    continue, and all failures are reported at the end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["unmdpo.pipeline.executors.local"])
    messages, waiting = context.Queue(), list(missing)
    free, workers, failures = list(range(jobs)), list[_Worker](), dict[str, str]()
    with _stopping(workers):
        while waiting or workers:
            for name in ready_stages(run, waiting, failures):
                if not free:
                    break
                waiting.remove(name)
                slot = free.pop(0)
                arguments = (run.recipe.model_dump_json(), str(run.store.root), name, slot, jobs, messages)
                process = context.Process(target=_work, args=arguments, name=name)
                process.start()
                workers.append(_Worker(name, slot, process, time.monotonic()))
                view.started(name)
            _listen(messages, view, failures)
            for worker in [worker for worker in workers if not worker.process.is_alive()]:
                workers.remove(worker)
                free.append(worker.slot)
                _listen(messages, view, failures)
                _settle(run, worker, view, failures)
            if not workers and waiting and not ready_stages(run, waiting, failures):
                break  # the remaining stages need one that failed
            time.sleep(POLL)
    raise_failures(failures, waiting)


def _listen(messages: Any, view: View, failures: dict[str, str]) -> None:
    while True:
        try:
            kind, name, text = messages.get_nowait()
        except queue.Empty:
            return
        if kind == "failed":
            failures[name] = text
        elif kind == "warning":
            warnings.warn(text, UnmdpoWarning, stacklevel=2)
        else:
            view.progress(name, text)


def _settle(run: Run, worker: _Worker, view: View, failures: dict[str, str]) -> None:
    worker.process.join()
    if run.find(run.stages[worker.stage]) is not None:
        view.finished(worker.stage, time.monotonic() - worker.began)
        return
    code = worker.process.exitcode
    died = f"its process was killed by signal {-code}" if code and code < 0 else f"its process ended with code {code}"
    problem = failures.setdefault(worker.stage, died)
    view.failed(worker.stage, problem)


@contextlib.contextmanager
def _stopping(workers: list[_Worker]) -> Iterator[None]:
    try:
        yield
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join(PATIENCE)
            worker.process.kill()  # if it is still alive


def _work(recipe: str, root: str, name: str, slot: int, jobs: int, messages: Any) -> None:
    """Runs in the stage's process: takes its share of the machine, then does the stage."""
    signal.signal(signal.SIGTERM, stop)
    described = Recipe.model_validate_json(recipe)
    gpus, ranks = torch.cuda.device_count(), most_ranks(described)
    if gpus:
        allowed = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
        own = [allowed[(slot * ranks + place) % gpus] for place in range(ranks)]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // jobs))
    _pass_warnings_on(messages, name)
    try:
        run = open_run(described, Store(Path(root)))
        make(run, run.stages[name], lambda text: messages.put(("progress", name, text)))
    except (Stopped, KeyboardInterrupt):
        messages.cancel_join_thread()  # nobody is listening anymore
        return
    except UserError as error:
        messages.put(("failed", name, str(error)))
    except BaseException:
        messages.put(("failed", name, traceback.format_exc()))
    messages.close()
    messages.join_thread()


def _pass_warnings_on(messages: Any, name: str) -> None:
    """Our own warnings go to the command that is watched; those of libraries are shown where they arise."""
    show = warnings.showwarning

    def passed_on(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, UnmdpoWarning):
            messages.put(("warning", name, str(message)))
        else:
            show(message, category, *where, **more)

    warnings.showwarning = passed_on
