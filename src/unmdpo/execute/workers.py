"""Processes that do one stage after another, and so keep what they have imported and compiled. One whose stage failed
is not used again.

They are forked from a server that has imported everything heavy. Some libraries ask about GPUs when they are imported,
and then no fork of the server can use them: workers are started from nothing there, which takes longer.
"""

import contextlib
import gc
import multiprocessing
import queue
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

import torch

from unmdpo.core.code import Code, call_with
from unmdpo.core.errors import OutOfMemory, Stopped, UnmdpoWarning, UserError
from unmdpo.core.processes import deaf_to_interrupts, end_with_parent, fork_server, main_hidden
from unmdpo.execute.ranks import run_stage
from unmdpo.stages.pipeline import Pipeline, open_recorded
from unmdpo.stages.shared.base import Stage

SHOW = warnings.showwarning  # as it was before any stage
SERVE = Code("unmdpo.execute.workers:serve")
PATIENCE = 300.0  # seconds that a stopped stage may take to write its checkpoint
FAREWELL = 30.0  # seconds that a process may take to end after its stage has failed


class Message(NamedTuple):
    kind: Literal["progress", "warning", "done", "failed", "out of memory"]
    stage: str
    text: str = ""


@dataclass
class Worker:
    process: Any
    tasks: Connection
    devices: tuple[int, ...]
    stage: str | None = None
    began: float = 0.0

    def start(self, stage: str, threads: int, microbatch: int | None, began: float) -> None:
        self.stage, self.began = stage, began
        with contextlib.suppress(OSError):  # a process that has just died is noticed by whoever watches it
            self.tasks.send((stage, threads, microbatch))

    def close(self) -> None:
        """Nothing more to do: the process ends."""
        self.tasks.close()

    def end(self) -> None:
        """Waits until it has ended: only then is its memory free."""
        self.close()
        self.process.join(FAREWELL)
        self.process.kill()  # if it is still alive


class Workers:
    def __init__(self, run: Pipeline, jobs: int, gpus: Sequence[str]) -> None:
        self.context: ForkServerContext | SpawnContext = fork_server(__name__)
        self._messages, self._gpus, self.all = self.context.Queue(), gpus, list[Worker]()
        self.environment: Mapping[str, str] = {}  # more variables for each
        self._described = (str(run.store.root), run.folder.name)
        at_once = min(jobs, 2 * len(gpus)) if gpus else jobs  # on a GPU, seldom more need their cores
        self.threads = shares(run.stages, torch.get_num_threads(), at_once)

    def spawn_from_now_on(self) -> None:
        """Starts further workers from nothing instead of forking them."""
        self.context = multiprocessing.get_context("spawn")

    @property
    def busy(self) -> list[Worker]:
        return [worker for worker in self.all if worker.stage is not None]

    def worker_for(self, devices: tuple[int, ...]) -> Worker:
        """A worker for these devices, a warm one if there is one."""
        for worker in self.all:
            if worker.stage is None and worker.devices == devices and worker.process.is_alive():
                return worker
        theirs, ours = self.context.Pipe(duplex=False)
        names = [self._gpus[place] for place in devices]
        arguments = (*self._described, theirs, self._messages)
        # before anything is imported there that asks about GPUs
        environment = {**self.environment, "CUDA_VISIBLE_DEVICES": ",".join(names)} if names else {}
        process = self.context.Process(target=call_with, args=(environment, SERVE, arguments), name="unmdpo-worker")
        with main_hidden(), deaf_to_interrupts():
            process.start()
        theirs.close()
        self.all.append(Worker(process, ours, devices))
        return self.all[-1]

    def end_idle(self, devices: tuple[int, ...]) -> None:
        """Ends workers that have nothing to do on these devices: they hold a little of the memory."""
        for worker in [each for each in self.all if each.stage is None and {*each.devices} & {*devices}]:
            self.remove(worker)

    def remove(self, worker: Worker) -> None:
        """A worker that is not fit for another stage."""
        worker.end()
        self.all.remove(worker)

    def messages(self) -> Iterator[Message]:
        """What has arrived."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._messages.get_nowait()

    @contextlib.contextmanager
    def stopped_at_the_end(self) -> Iterator[None]:
        try:
            yield
        finally:
            for worker in self.all:
                worker.close()
            for worker in self.busy:
                worker.process.terminate()
            self._wait_for_all()
            for worker in self.all:
                worker.process.kill()  # if it is still alive

    def _wait_for_all(self) -> None:
        """Hears what they still say: a process does not end before its last words are taken from the pipe."""
        deadline = time.monotonic() + PATIENCE
        while (alive := [worker.process for worker in self.all if worker.process.is_alive()]) and (
            time.monotonic() < deadline
        ):
            for _ in self.messages():
                pass
            wait([process.sentinel for process in alive], timeout=0.1)


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


def shares(stages: Mapping[str, Stage[Any]], cores: int, at_once: int) -> dict[str, int]:
    """How many threads each stage computes with: all cores, divided by the stages with a model that are likely to run
    at the same time, which are those at one depth of the graph. The stages alone decide, not what finishes first, so a
    run that was stopped and continued gives the same bits."""
    needed, depth = dict[str, set[str]](), dict[str, int]()
    for name, stage in stages.items():  # inputs come first
        inputs = {each.name for each in stage.inputs.values()}
        needed[name] = inputs.union(*(needed[each] for each in inputs))
        depth[name] = 1 + max((depth[each] for each in inputs), default=0)
    heavy = [name for name, stage in stages.items() if stage.kind.cost is not None]
    found = dict[str, int]()
    for name in stages:
        beside = Counter(
            depth[other] for other in heavy if name not in {other, *needed[other]} and other not in needed[name]
        )
        found[name] = max(1, cores // min(at_once, 1 + max(beside.values(), default=0)))
    return found


def serve(root: str, name: str, tasks: Connection, messages: Any) -> None:
    """Runs in the worker: does stages, each on its share of the machine, until it is closed."""
    stop = StopSignal()
    end_with_parent()
    run = open_recorded(Path(root), name)
    fit = True
    while fit:
        try:
            name, threads, microbatch = tasks.recv()
        except EOFError:  # closed, or the command is gone
            break
        try:
            torch.set_num_threads(threads)
            with stop.interrupts():
                fit = _do(run, name, microbatch, messages)
        except (Stopped, KeyboardInterrupt):
            messages.cancel_join_thread()  # nobody is listening anymore
            return
    messages.close()
    messages.join_thread()


def _do(run: Pipeline, name: str, microbatch: int | None, messages: Any) -> bool:
    """Does one stage; whether it succeeded, so that the process is fit for another."""
    _pass_warnings_on(messages, name)
    try:
        own = run.with_microbatch(microbatch)
        run_stage(own, own.stages[name], lambda text: messages.put(Message("progress", name, text)))
    except OutOfMemory as error:
        messages.put(Message("out of memory", name, str(error)))
    except UserError as error:
        messages.put(Message("failed", name, str(error)))
    except Exception:
        messages.put(Message("failed", name, traceback.format_exc()))
    else:
        free_memory()  # before anyone counts on it
        messages.put(Message("done", name))
        return True
    return False


def free_memory() -> None:
    """Frees what a stage held on the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _pass_warnings_on(messages: Any, name: str) -> None:
    """Our own warnings go to the command that is watched; those of libraries are shown where they arise."""

    def passed_on(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, UnmdpoWarning):
            messages.put(Message("warning", name, str(message)))
        else:
            SHOW(message, category, *where, **more)

    warnings.showwarning = passed_on
