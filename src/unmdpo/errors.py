"""What the user can mend: every such error says what is wrong, where, and what to do."""

from types import FrameType


class UserError(Exception):
    """A mistake outside the program. The command shows it without a traceback, exit code 2."""


class DataError(UserError):
    """A row, or a file, that cannot be read. `where` names the file and, if known, the row."""

    def __init__(self, where: object, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


WAY_OUT = "what is finished is kept: mend it, and the same command goes on"


def told_of_disk(error: OSError, place: object = "the disk") -> str:
    """Which path, what the system says of it, and what to do."""
    return f"{error.filename or place}: {error.strerror or error}; {WAY_OUT}"


def printable(text: str) -> str:
    """Text from files and models, safe for a terminal: control characters are shown, not obeyed."""
    return "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in text)


class UnmdpoWarning(UserWarning):
    """Something the user should know, though the work goes on."""


class Stopped(BaseException):
    """A signal asked for a stop, and what was at hand is safely on disk."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


def stop(number: int, frame: FrameType | None) -> None:
    """A signal as an exception, so that whoever holds processes or locks lets them go."""
    raise Stopped(number)
