"""Code that is not ours: what it prints is told and does not mix with what a command prints, and it cannot end it."""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

from unmdpo.errors import UnmdpoWarning, printable

SHOWN = 200  # bytes


class _Ear(io.RawIOBase):
    """Remembers the beginning and the length."""

    def __init__(self) -> None:
        self.beginning, self.length = b"", 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        heard = bytes(data)
        self.beginning += heard[: SHOWN - len(self.beginning)]
        self.length += len(heard)
        return len(heard)

    def fileno(self) -> int:
        """For programs that are started with it: what they print goes where messages go."""
        return sys.stderr.fileno()


@contextlib.contextmanager
def overheard(who: str) -> Iterator[None]:
    """Keeps printed text from standard output, which belongs to the command, and tells what it was."""
    ear = _Ear()
    try:
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BufferedWriter(ear), "utf-8", write_through=True)) as out:
            yield
    finally:
        out.flush()
        printed = ear.beginning.decode("utf-8", "ignore").strip()
        if printed:
            rest = f" and {ear.length - SHOWN:,} bytes more" if ear.length > SHOWN else ""
            warnings.warn(f"{who} printed: {printable(printed)}{rest}", UnmdpoWarning, stacklevel=3)


@contextlib.contextmanager
def kept_running() -> Iterator[None]:
    """`os._exit` would end the command at once, with whatever code and nothing said; here it only leaves this context.
    Processes that are forked meanwhile end by it, as they should."""
    leave, here = os._exit, os.getpid()

    def refused(status: int) -> NoReturn:
        if os.getpid() != here:
            leave(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = refused
    try:
        yield
    finally:
        os._exit = leave
