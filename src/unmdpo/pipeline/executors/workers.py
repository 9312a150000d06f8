"""Processes that do one stage after another, and so keep what they have imported and compiled.

They are forked from a server that has imported everything heavy once. A process whose stage failed is not used again.
"""

import contextlib
import gc
import multiprocessing
import os
import queue
import signal
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from unmdpo.errors import OutOfMemory, Stopped, UnmdpoWarning, UserError, stop
from unmdpo.pipeline.executors.making import with_microbatch
from unmdpo.pipeline.executors.ranks import make
from unmdpo.pipeline.run import Run, open_run
from unmdpo.pipeline.store import Store
from unmdpo.recipe import Recipe

PATIENCE = 300.0  # seconds that a stopped stage may take to write its checkpoint


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

    def do(self, stage: str, microbatch: int | None, began: float) -> None:
        self.stage, self.began = stage, began
        with contextlib.suppress(OSError):  # a process that has just died is noticed by whoever watches it
            self.tasks.send((stage, microbatch))

    def dismiss(self) -> None:
        """It has nothing to do, and ends."""
        self.tasks.close()


class Workers:
    def __init__(self, run: Run, jobs: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["unmdpo.pipeline.executors.workers"])
        self._context: ForkServerContext = context
        self._messages, self.all = context.Queue(), list[Worker]()
        self._described = (run.recipe.model_dump_json(), str(run.store.root))
        self._threads = max(1, len(os.sched_getaffinity(0)) // jobs)

    @property
    def busy(self) -> list[Worker]:
        return [worker for worker in self.all if worker.stage is not None]

    def on(self, devices: tuple[int, ...]) -> Worker:
        """A worker for these devices, a warm one if there is one."""
        for worker in self.all:
            if worker.stage is None and worker.devices == devices and worker.process.is_alive():
                return worker
        theirs, ours = self._context.Pipe(duplex=False)
        arguments = (*self._described, devices, self._threads, theirs, self._messages)
        process = self._context.Process(target=_serve, args=arguments, name="unmdpo-worker")
        process.start()
        theirs.close()
        self.all.append(Worker(process, ours, devices))
        return self.all[-1]

    def dismiss(self, worker: Worker) -> None:
        worker.dismiss()
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
                worker.dismiss()
            for worker in self.busy:
                worker.process.terminate()
            for worker in self.all:
                worker.process.join(PATIENCE)
                worker.process.kill()  # if it is still alive


def free_memory() -> list[float]:
    """Bytes that are free on each GPU, asked in a process of its own, since asking takes memory there; none without
    GPUs."""
    if not torch.cuda.device_count():
        return []
    context = multiprocessing.get_context("forkserver")
    theirs, ours = context.Pipe(duplex=False)
    process = context.Process(target=_tell_free_memory, args=(ours,))
    process.start()
    ours.close()
    try:
        return list(theirs.recv())
    except EOFError as error:
        raise UserError("the GPUs do not answer; `nvidia-smi` may say why") from error
    finally:
        process.join()


def _tell_free_memory(asked: Connection) -> None:
    asked.send([float(torch.cuda.mem_get_info(place)[0]) for place in range(torch.cuda.device_count())])


def _serve(recipe: str, root: str, devices: Sequence[int], threads: int, tasks: Connection, messages: Any) -> None:
    """Runs in the worker: takes its share of the machine, then does stages until it is dismissed."""
    signal.signal(signal.SIGTERM, stop)
    if devices:
        count = torch.cuda.device_count()
        allowed = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(allowed[place] for place in devices)
    torch.set_num_threads(threads)
    with contextlib.suppress(EOFError):  # dismissed, or the command is gone
        try:
            run = open_run(Recipe.model_validate_json(recipe), Store(Path(root)))
            while True:
                name, microbatch = tasks.recv()
                if not _do(run, name, microbatch, messages):
                    break
                tidy()
        except (Stopped, KeyboardInterrupt):
            messages.cancel_join_thread()  # nobody is listening anymore
            return
    messages.close()
    messages.join_thread()


def _do(run: Run, name: str, microbatch: int | None, messages: Any) -> bool:
    """Does one stage; whether it succeeded, so that the process is fit for another."""
    _pass_warnings_on(messages, name)
    try:
        own = with_microbatch(run, microbatch)
        make(own, own.stages[name], lambda text: messages.put(Message("progress", name, text)))
    except OutOfMemory as error:
        messages.put(Message("out of memory", name, str(error)))
    except UserError as error:
        messages.put(Message("failed", name, str(error)))
    except Exception:
        messages.put(Message("failed", name, traceback.format_exc()))
    else:
        messages.put(Message("done", name))
        return True
    return False


def tidy() -> None:
    """Nothing of a stage stays on the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _pass_warnings_on(messages: Any, name: str) -> None:
    """Our own warnings go to the command that is watched; those of libraries are shown where they arise."""
    show = warnings._showwarning_orig  # type: ignore[attr-defined]

    def passed_on(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, UnmdpoWarning):
            messages.put(Message("warning", name, str(message)))
        else:
            show(message, category, *where, **more)

    warnings.showwarning = passed_on
