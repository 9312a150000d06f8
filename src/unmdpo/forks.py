"""The server that workers are forked from: it has imported everything heavy once, so a new worker starts at once."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from typing import Any

WORKERS = "unmdpo.pipeline.executors.workers"
# `torch.cuda.is_available()` then asks the driver's monitor: no fork could use a GPU after the driver itself was asked
HARMLESS = "PYTORCH_NVML_BASED_CUDA_CHECK"


def fork_server() -> ForkServerContext:
    """The server, started if need be. It imports while the caller goes on."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([WORKERS])
    with _asking_harmlessly(), _deaf_to_interrupts():
        forkserver.ensure_running()
    return context


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
def _asking_harmlessly() -> Iterator[None]:
    before = os.environ.get(HARMLESS)
    os.environ[HARMLESS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[HARMLESS]
        else:
            os.environ[HARMLESS] = before


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal; those born here leave it to the command, which stops them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what signals do
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
