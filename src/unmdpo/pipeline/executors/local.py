"""Runs stages on this machine: one after another in this process, or several at once in processes of their own, as
many as fit on the GPUs."""

import os
import time
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from unmdpo.engine.cost import USABLE
from unmdpo.errors import OutOfMemory, UnmdpoWarning, UserError
from unmdpo.pipeline.executors.gpus import gpu_memory, gpu_names
from unmdpo.pipeline.executors.making import raise_failures, ready_stages, with_microbatch
from unmdpo.pipeline.executors.ranks import make
from unmdpo.pipeline.executors.room import Need, Room, Try, need_of
from unmdpo.pipeline.executors.workers import Message, Worker, Workers, tidy
from unmdpo.pipeline.run import Run
from unmdpo.pipeline.stage import Stage
from unmdpo.pipeline.view import View
from unmdpo.recipe import Recipe

POLL = 0.05  # seconds
PER_GPU = 8  # stages at once, at most
AGAIN = "out of GPU memory: it is tried again "


def most_ranks(recipe: Recipe) -> int:
    return max([recipe.compute.ranks, *recipe.compute.ranks_of.values()])


def default_jobs(ranks: int = 1) -> int:
    """The most stages at once: several on each GPU, as far as they fit, or one per core if there are no GPUs; divided
    by the ranks of a stage."""
    gpus = torch.cuda.device_count()
    return max(2, PER_GPU * gpus // ranks) if gpus else max(1, len(os.sched_getaffinity(0)) // ranks)


def one_by_one(run: Run, missing: Sequence[str], view: View) -> None:
    for name in missing:
        began = time.monotonic()
        view.started(name)
        _persistently(run, run.stages[name], view)
        view.finished(name, time.monotonic() - began)


def _persistently(run: Run, stage: Stage[Any], view: View) -> None:
    """Makes a stage, with smaller microbatches if it runs out of memory."""
    trying, need = Try(alone=True), Need()
    while True:
        try:
            return make(with_microbatch(run, trying.tokens(need)), stage, partial(view.progress, stage.name))
        except OutOfMemory:
            need = need_of(run, stage, _memory())
            following = trying.next(need)
            if following is None:
                raise
            trying = following
        tidy()  # after the error, which holds on to what was on the device
        view.retried(stage.name, _again(trying))


def _memory() -> float:
    return float(torch.cuda.mem_get_info()[1]) if torch.cuda.is_available() else float("inf")


def _again(trying: Try) -> str:
    return AGAIN + ("with smaller microbatches" if trying.part else "alone")


def side_by_side(run: Run, missing: Sequence[str], jobs: int, view: View) -> None:
    """Runs the missing stages, each as soon as its inputs are finished and there is room for it. If one fails, those
    that do not need it continue, and all failures are reported at the end."""
    crew = _Crew(run, missing, jobs, view)
    with crew.workers.stopped_at_the_end():
        crew.look_around()
        while crew.waiting or crew.workers.busy:
            crew.start_what_fits()
            crew.listen()
            crew.bury()
            if crew.stuck:
                break  # the remaining stages need one that failed
            time.sleep(POLL)
    raise_failures(crew.failures, crew.waiting)


class _Crew:
    """The stages of a run and the workers that do them."""

    def __init__(self, run: Run, missing: Sequence[str], jobs: int, view: View) -> None:
        self.run, self.jobs, self.view, self.waiting = run, jobs, view, list(missing)
        self.failures, self.tries, self._needs = dict[str, str](), dict[str, Try](), dict[str, Need]()
        gpus = gpu_names()
        self._has_gpus, self.workers = bool(gpus), Workers(run, jobs, gpus)
        self._total, self.room = float("inf"), Room([float("inf")])

    def look_around(self) -> None:
        """Finds out how much room there is."""
        if self._has_gpus and self.waiting:
            memory = gpu_memory(self.workers.context)
            if memory is None:  # perhaps only no fork can use them
                self.workers.start_from_nothing()
                self.workers.on((0,))  # which gets ready meanwhile
                memory = gpu_memory(self.workers.context)
            if memory is None:
                raise UserError("the GPUs do not answer; `nvidia-smi` may say why")
            self._total, self.room = max(gpu.total for gpu in memory), Room([USABLE * gpu.free for gpu in memory])

    @property
    def stuck(self) -> bool:
        ready = ready_stages(self.run, self.waiting, self.failures)
        return bool(self.waiting) and not self.workers.busy and not ready

    def start_what_fits(self) -> None:
        ready = ready_stages(self.run, self.waiting, self.failures)
        ready.sort(key=lambda name: not self.tries.get(name, Try()).alone)  # who needs the GPU alone goes first
        clearing = False  # for one that waits to be alone, and would have to wait longer for others
        for name in ready:
            if len(self.workers.busy) == self.jobs:
                return
            if clearing and not self._need(name).free:
                continue
            trying = self.tries.get(name, Try())
            devices = self.room.take(name, self._need(name), alone=trying.alone)
            if devices is not None:
                self._start(name, devices, trying)
            clearing |= devices is None and trying.alone

    def _need(self, name: str) -> Need:
        if name not in self._needs:
            stage = self.run.stages[name]
            self._needs[name] = need_of(self.run, stage, self._total) if self._has_gpus else Need()
        return self._needs[name]

    def _start(self, name: str, devices: tuple[int, ...], trying: Try) -> None:
        self.waiting.remove(name)
        if trying.alone:
            self.workers.clear(devices)
        needed = self._has_gpus and not self._need(name).free  # a worker that has used a GPU holds a little of it
        worker = self.workers.on(devices if needed else ())
        worker.do(name, trying.tokens(self._need(name)), time.monotonic())
        if name not in self.tries:
            self.view.started(name)

    def listen(self) -> None:
        for message in self.workers.messages():
            if message.kind == "warning":
                warnings.warn(message.text, UnmdpoWarning, stacklevel=2)
            elif message.kind == "progress":
                self.view.progress(message.stage, message.text)
            else:
                self._settle(message)

    def _settle(self, message: Message) -> None:
        """A stage ended, one way or another."""
        worker = next((each for each in self.workers.busy if each.stage == message.stage), None)
        if worker is None:
            return
        if message.kind == "done":
            self._release(worker)
            self.view.finished(message.stage, time.monotonic() - worker.began)
            return
        self.workers.remove(worker)
        self._release(worker)
        trying = self.tries.get(message.stage, Try()).next(self._need(message.stage))
        if trying is None or message.kind != "out of memory":
            self._fail(message.stage, message.text)
            return
        self.tries[message.stage] = trying
        self.waiting.append(message.stage)
        self.view.retried(message.stage, _again(trying))

    def bury(self) -> None:
        """Notices workers that died without a word."""
        for worker in [each for each in self.workers.all if not each.process.is_alive()]:
            self.listen()
            if worker not in self.workers.all:
                continue
            self.workers.remove(worker)
            if worker.stage is None:
                continue
            name, code = worker.stage, worker.process.exitcode
            self._release(worker)
            if self.run.find(self.run.stages[name]) is not None:
                self.view.finished(name, time.monotonic() - worker.began)
                continue
            killed = f"its process was killed by signal {-code}" if code and code < 0 else None
            self._fail(name, killed or f"its process ended with code {code}")

    def _release(self, worker: Worker) -> None:
        assert worker.stage is not None
        self.room.leave(worker.stage)
        worker.stage = None

    def _fail(self, name: str, problem: str) -> None:
        self.failures[name] = problem
        self.view.failed(name, problem)
