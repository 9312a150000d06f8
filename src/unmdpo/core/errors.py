"""Errors the user can fix. Each says what is wrong, where, and what to do about it."""

import os
import signal
from collections.abc import Iterable
from difflib import get_close_matches
from types import FrameType

MAX_NAMES = 20


class UserError(Exception):
    """A mistake outside the program. The command line shows it without a traceback and exits with code 2."""


class DataError(UserError):
    """A row or a file that cannot be read. `where` names the file and, if known, the row."""

    def __init__(self, where: object, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


class OutOfMemory(UserError):
    """A stage did not fit on its GPU; with more room or smaller microbatches it may."""


RESUME_HINT = "finished work is kept: fix this and run the same command again"


def disk_problem(error: OSError, place: object = "the disk") -> str:
    """A message with the path, the system's reason, and what to do."""
    return f"{error.filename or place}: {error.strerror or error}; {RESUME_HINT}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint to append to an error: the closest of `known`, or the whole list if none is close."""
    names = sorted(set(known))
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    if len(names) > MAX_NAMES:
        names = [*names[:MAX_NAMES], "…"]
    return f"known: {', '.join(name[:60] for name in names)}" if names else "there are none"


def printable(text: str) -> str:
    """Text from files and models, made safe for a terminal: control characters are escaped."""
    return "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in text)


class UnmdpoWarning(UserWarning):
    """Something the user should know, although the work continues."""


class Stopped(BaseException):
    """A signal asked the program to stop, and work in progress is safely on disk."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


def stop(number: int, frame: FrameType | None) -> None:
    """A signal handler that raises, so processes and locks are released on the way out. A second signal does not wait
    for that."""
    for each in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(each) is stop:
            signal.signal(each, _end)
    raise Stopped(number)


def _end(number: int, frame: FrameType | None) -> None:
    """Nothing is waited for; what is finished is kept all the same, and processes that were started end by
    themselves."""
    os.write(2, b"stopped immediately; finished work is kept, and the same command continues from there\n")
    os._exit(128 + number)
