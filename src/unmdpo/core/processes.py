"""The server that workers are forked from, and how all processes end with the command that started them."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, TextIO

# `torch.cuda.is_available()` then asks the driver's monitor: no fork could use a GPU after the driver itself was asked
HARMLESS = "PYTORCH_NVML_BASED_CUDA_CHECK"
# How often a thread that waits for others looks before it sleeps. The library's own 300,000 keep a core busy for
# nothing; where two runs share the cores, they made fitting a scale eight times slower (docs/evidence/performance.md)
SPINS, POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
GRACE = 60.0  # seconds that a process may take to end without the one that started it


class _Patient:
    """A stream whose reader may leave: what it no longer takes goes nowhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._left_alone():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._left_alone():
            self._stream.flush()

    @contextlib.contextmanager
    def _left_alone(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def keep_streams() -> None:
    """Output that nobody reads ends no run: `unmdpo run x 2>&1 | head -1`, or a stream that is closed. Descriptors 0
    to 2 always lead somewhere, so that no file of ours gets one of them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - kept open
        setattr(sys, name, _Patient(stream))


def cores() -> int:
    """How many processor cores this process may use; macOS does not say."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def fork_server(preload: str) -> ForkServerContext:
    """The server, started if need be. It imports a module while the caller goes on."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    let_threads_sleep()
    with _environment(), deaf_to_interrupts():
        forkserver.ensure_running()
    return context


def let_threads_sleep() -> None:
    """Before PyTorch is imported, for this process and those that it starts; unless the user chose otherwise."""
    if POLICY not in os.environ:
        os.environ.setdefault(SPINS, "1000")


def end_with_parent() -> None:
    """Stops this process once the one that started it is gone: it would hold a GPU for nothing. The server that it was
    forked from lives as long as its forks, and does not notice."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        _stop_after(parent.join)


def end_with_input() -> None:
    """The same for processes that have others in between: whoever started them holds the other end of their standard
    input, and writes nothing to it."""

    def ended() -> None:
        while os.read(0, 1024):  # without Python's buffer, whose lock a thread may not hold when Python ends
            pass

    _stop_after(ended)


def _stop_after(wait: Callable[[], object]) -> None:
    def watch() -> None:
        wait()
        os.kill(os.getpid(), signal.SIGTERM)  # as if asked: a checkpoint is written
        time.sleep(GRACE)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, name="unmdpo-watch", daemon=True).start()


@contextlib.contextmanager
def main_hidden() -> Iterator[None]:
    """Processes that start here need nothing of the caller's script. They would import it otherwise, and so run it
    once more if it is not written for that."""
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    for name in hidden:
        delattr(main, name)
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Of the server and of Python's tracker of semaphores, which would complain about those of a killed command."""
    quiet = ",".join([*filter(None, [os.environ.get("PYTHONWARNINGS")]), "ignore:resource_tracker"])
    changed = {HARMLESS: "1", "PYTHONWARNINGS": quiet}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal; those born here leave it to the command, which stops them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what signals do
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
