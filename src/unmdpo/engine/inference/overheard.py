"""What code that is not ours prints: a little of it is told, and it does not mix with what a command prints."""

import contextlib
import io
import warnings
from collections.abc import Iterator

from unmdpo.errors import UnmdpoWarning, printable

SHOWN = 200  # characters


class _Ear(io.TextIOBase):
    """Remembers the beginning and the length."""

    def __init__(self) -> None:
        self.beginning, self.length = "", 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.beginning += text[: SHOWN - len(self.beginning)]
        self.length += len(text)
        return len(text)


@contextlib.contextmanager
def overheard(who: str) -> Iterator[None]:
    """Keeps printed text from standard output, which belongs to the command, and tells what it was."""
    ear = _Ear()
    try:
        with contextlib.redirect_stdout(ear):
            yield
    finally:
        if ear.beginning.strip():
            rest = f" and {ear.length - SHOWN:,} characters more" if ear.length > SHOWN else ""
            warnings.warn(f"{who} printed: {printable(ear.beginning.strip())}{rest}", UnmdpoWarning, stacklevel=3)
