"""Pools of this machine: this process itself, or several processes, each in a slot of its own.

A process keeps what it has imported and compiled for the next stage; one whose stage failed is not used again.
Processes are forked from a server that has imported everything heavy; where a library has asked about GPUs when it was
imported, no fork can use them, and processes start from nothing.
"""

import contextlib
import gc
import multiprocessing
import os
import queue
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

import torch

from unmdpo.core.errors import OutOfMemory, Stopped, UnmdpoWarning, UserError
from unmdpo.core.processes import cores, deaf_to_interrupts, end_with_parent, fork_server, main_hidden
from unmdpo.engine.cost import USABLE, available
from unmdpo.engine.meta import meta_model, parameters
from unmdpo.execute.costs import training_cost
from unmdpo.execute.driver import Attempt, Message, Outcome, outcome_of, with_part
from unmdpo.execute.gpus import READING_AT_ONCE, SMALL_MODEL, TRAINING_AT_ONCE, Gpus, Use
from unmdpo.execute.mps import shared_gpus
from unmdpo.execute.progress import View
from unmdpo.execute.ranks import run_stage
from unmdpo.stages.opening import open_recorded
from unmdpo.stages.pipeline import Pipeline
from unmdpo.stages.shared.base import Stage

PROCESS_BYTES = 1.5e9  # that a process takes before it does anything
PROCESSOR_SLOTS = 4  # beside those of GPUs, for stages that do not use one
ANSWER_SECONDS = 180.0  # that a GPU may take to answer a process
CHECKPOINT_SECONDS = 300.0  # that a stopped stage may take to write its checkpoint
SHOW_WARNING = warnings.showwarning  # as it was before any stage


def gpu_names() -> list[str]:
    """As `CUDA_VISIBLE_DEVICES` names them; none without GPUs."""
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [] if not count else [str(i) for i in range(count)] if named is None else named.split(",")[:count]


def has_small_model(run: Pipeline) -> bool:
    return parameters(meta_model(run.recipe.model)) < SMALL_MODEL


def default_jobs(run: Pipeline) -> int:
    """The most stages at once: as many as the GPUs take, and some that need none. Without GPUs, one on each core, but
    no more than fit into memory if all were as large as the largest; divided by the ranks of a stage."""
    gpus = torch.cuda.device_count()
    if gpus:
        per_gpu = TRAINING_AT_ONCE + READING_AT_ONCE if has_small_model(run) else 1
        return per_gpu * gpus + PROCESSOR_SLOTS
    compute = run.recipe.compute
    ranks = max([compute.ranks, *compute.ranks_of.values()])
    memory = available(torch.device("cpu"))
    with_one_pair = run.with_microbatch(2 * run.recipe.data.max_length).recipe.compute
    costs = [training_cost(stage, with_one_pair, memory) for stage in run.stages.values()]
    largest = PROCESS_BYTES + max((cost.memory for cost in costs if cost is not None), default=0.0)
    return max(1, min(cores() // ranks, int(USABLE * memory // largest)))


class ThisProcess:
    """Runs stages one after another, here. Errors are raised where they arise."""

    queues = False
    runs_alone = True

    def __init__(self, run: Pipeline, view: View) -> None:
        self._run = run
        self._view = view
        self._has_run = False  # a stage whose end is not shown yet

    def has_room(self, stage: Stage, how: Attempt) -> bool:
        return not self._has_run

    def submit(self, stage: Stage, how: Attempt) -> Future[Outcome]:
        began = time.monotonic()
        future = Future[Outcome]()
        try:
            run_stage(with_part(self._run, stage, how), stage, partial(self._view.progress, stage.name))
        except OutOfMemory:
            if how.next(stage) is None:
                raise
            future.set_result(Outcome("out of memory", out_of_memory=True))
        else:
            future.set_result(Outcome(seconds=time.monotonic() - began))
        free_memory()  # after the error, which holds on to what was on the device
        self._has_run = True
        return future

    def messages(self) -> Iterator[Message]:
        """Nothing: progress is shown at once. The end of a stage is shown before the next one begins."""
        self._has_run = False
        return iter(())


class Slot:
    """A process that does one stage after another."""

    def __init__(self, pool: "LocalPool", devices: tuple[str, ...]) -> None:
        self.devices = devices  # the GPUs that it sees; none: it computes on the processor
        self.stage: Stage | None = None  # that it does now
        environment = {"CUDA_VISIBLE_DEVICES": ",".join(devices), **pool.environment} if devices else {}
        self._executor = ProcessPoolExecutor(
            1, pool.context, initializer=begin, initargs=(*pool.identity, environment, pool.threads, pool.queue)
        )
        before = {*multiprocessing.active_children()}
        with main_hidden(), deaf_to_interrupts():
            self._is_up = self._executor.submit(can_use_gpus if devices else os.getpid)
        self._process = ({*multiprocessing.active_children()} - before).pop()

    def answers(self) -> bool:
        """Whether its process can use its GPUs."""
        try:
            return bool(self._is_up.result(ANSWER_SECONDS))
        except (BrokenProcessPool, TimeoutError):
            return False

    def start(self, stage: Stage, how: Attempt, devices: Sequence[str]) -> "Future[Outcome]":
        """`devices` are for a stage whose ranks are processes of their own."""
        self.stage = stage
        work = self._executor.submit(do_stage, stage.name, how, devices)
        told = Future[Outcome]()
        work.add_done_callback(lambda done: told.set_result(self._outcome(done)))
        return told

    def _outcome(self, done: "Future[Outcome]") -> Outcome:
        error = done.exception()
        if error is None:
            return done.result()
        self._process.join(ANSWER_SECONDS)
        code = self._process.exitcode
        killed = f"its process was killed by signal {-code}" if code is not None and code < 0 else None
        return Outcome(killed or f"its process ended with code {code}")

    def interrupt(self) -> None:
        """Asks the stage to write a checkpoint and end."""
        if self.stage is not None:
            self._process.terminate()

    def close(self) -> threading.Thread:
        """Ends the process once its stage has ended."""
        closing = threading.Thread(target=self._executor.shutdown, daemon=True)
        closing.start()
        return closing

    def kill(self) -> None:
        self._process.kill()  # if it is still alive


class Running(NamedTuple):
    slot: Slot
    gpus: tuple[str, ...]
    use: Use


class LocalPool:
    queues = False
    runs_alone = False

    def __init__(self, run: Pipeline, jobs: int) -> None:
        self._run = run
        self._jobs = jobs
        self._slots: list[Slot] = []
        self._running: dict[Future[Outcome], Running] = {}
        self._gpus = Gpus((), are_shared=False)
        self.context: BaseContext = fork_server(__name__)
        self.queue: Any = self.context.Queue()
        self.identity = (str(run.store.root), run.folder.name)
        self.environment: Mapping[str, str] = {}  # more variables for processes that use a GPU
        self.threads = max(1, torch.get_num_threads() // jobs)
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Self:
        names = gpu_names()
        if names:
            are_shared = has_small_model(self._run)
            self._gpus = Gpus(names, are_shared=are_shared)
            shared = self._cleanup.enter_context(shared_gpus(wanted=are_shared))
            self._find_out_how_to_start(names[0], shared)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stops what is still at work, and hears what it says: a process does not end before its last words are taken
        from the pipe."""
        if kind is not None:
            for slot in self._slots:
                slot.interrupt()
        closing = [slot.close() for slot in self._slots]
        deadline = time.monotonic() + CHECKPOINT_SECONDS
        last_words: list[Message] = []
        while (alive := [thread for thread in closing if thread.is_alive()]) and time.monotonic() < deadline:
            last_words += self.messages()
            alive[0].join(0.05)
        last_words += self.messages()
        for message in last_words:
            if message.kind == "warning" and kind is None:
                warnings.warn(message.text, UnmdpoWarning, stacklevel=2)
        for slot in self._slots:
            slot.kill()
        self._cleanup.close()

    def _find_out_how_to_start(self, gpu: str, shared: Mapping[str, str]) -> None:
        """Forked or from nothing, with NVIDIA's service for sharing a GPU or without: the first way that works."""
        ways = [(context, shared) for context in (self.context, multiprocessing.get_context("spawn"))]
        ways += [(context, {}) for context, environment in ways if environment]
        for self.context, self.environment in ways:
            slot = Slot(self, (gpu,))
            if slot.answers():
                self._slots.append(slot)
                return
            slot.kill()
        raise UserError("the GPUs do not answer; `nvidia-smi` may say why")

    def has_room(self, stage: Stage, how: Attempt) -> bool:
        self._release_what_ended()
        if len(self._running) >= self._jobs:
            return False
        return not self._needs_gpu(stage) or bool(self._gpus.fitting(self._use(stage, how)))

    def submit(self, stage: Stage, how: Attempt) -> "Future[Outcome]":
        use = self._use(stage, how)
        gpus = self._gpus.take(use) if self._needs_gpu(stage) else ()
        if how.alone:
            self._end_idle(gpus)  # an idle process holds a little of the GPU's memory
        slot = self._slot(gpus if use.ranks == 1 else ())
        future = slot.start(stage, how, gpus if use.ranks > 1 else ())
        self._running[future] = Running(slot, gpus, use)
        return future

    def _needs_gpu(self, stage: Stage) -> bool:
        return stage.uses_gpu and len(self._gpus) > 0

    def _use(self, stage: Stage, how: Attempt) -> Use:
        return Use(stage.kind.trains, self._run.ranks(stage), how.alone)

    def messages(self) -> Iterator[Message]:
        with contextlib.suppress(queue.Empty):
            while True:
                yield self.queue.get_nowait()

    def _slot(self, devices: tuple[str, ...]) -> Slot:
        """An idle one with these devices, or a new one."""
        for slot in self._slots:
            if slot.stage is None and slot.devices == devices:
                return slot
        self._slots.append(Slot(self, devices))
        return self._slots[-1]

    def _release_what_ended(self) -> None:
        for future in [future for future in self._running if future.done()]:
            slot, gpus, use = self._running.pop(future)
            slot.stage = None
            self._gpus.release(gpus, use)
            if future.result().problem is not None:  # it may hold on to memory, or be dead
                self._slots.remove(slot)
                slot.close()

    def _end_idle(self, gpus: Sequence[str]) -> None:
        for slot in [slot for slot in self._slots if slot.stage is None and {*slot.devices} & {*gpus}]:
            self._slots.remove(slot)
            slot.close().join()


# --- In the process of a slot ---------------------------------------------------------------------


class StopSignal:
    """Remembers SIGTERM. It interrupts a stage, once, so that what the stage does on its way out is not disturbed;
    between stages there is nothing to interrupt."""

    def __init__(self) -> None:
        self._received = self._at_work = False
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received = True
        if self._at_work:
            self._at_work = False
            raise Stopped(number)

    @contextlib.contextmanager
    def interrupts(self) -> Iterator[None]:
        self._at_work = True
        try:
            if self._received:
                raise Stopped(signal.SIGTERM)
            yield
        finally:
            self._at_work = False


@dataclass(frozen=True)
class Worker:
    """What a slot's process keeps from one stage to the next."""

    run: Pipeline
    messages: Any  # the pool's queue
    stop: StopSignal


_worker: list[Worker] = []  # of this process: one, once it has begun


def begin(root: str, run_name: str, environment: Mapping[str, str], threads: int, messages: Any) -> None:
    os.environ.update(environment)  # before anything asks for a GPU
    torch.set_num_threads(threads)
    stop = StopSignal()
    end_with_parent()
    _worker.append(Worker(open_recorded(Path(root), run_name), messages, stop))


def can_use_gpus() -> bool:
    """Not in a fork of a process that has asked about GPUs, and not where NVIDIA's service is broken."""
    try:
        return torch.cuda.mem_get_info()[1] > 0
    except (RuntimeError, AssertionError):  # the second where torch was built without CUDA
        return False


def do_stage(name: str, how: Attempt, devices: Sequence[str]) -> Outcome:
    (worker,) = _worker
    _pass_warnings_on(worker, name)

    def report(text: str) -> None:
        worker.messages.put(Message("progress", name, text))

    with worker.stop.interrupts():
        outcome = outcome_of(worker.run, worker.run.stages[name], how, report, devices)
    free_memory()  # before anyone counts on it
    return outcome


def free_memory() -> None:
    """Frees what a stage held on the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _pass_warnings_on(worker: Worker, name: str) -> None:
    """Our own warnings go to the command that is watched; those of libraries are shown where they arise."""

    def pass_on(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, UnmdpoWarning):
            worker.messages.put(Message("warning", name, str(message)))
        else:
            SHOW_WARNING(message, category, *where, **more)

    warnings.showwarning = pass_on
