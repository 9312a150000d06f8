"""A polite stop: Ctrl-C or SIGTERM lets the update at hand end and its checkpoint be written."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequests:
    """While it is entered, stop signals are noted instead of acted on. The first one counts; the same one
    again is for the impatient, and acts at once."""

    def __init__(self) -> None:
        self.asked: int | None = None
        self._seen: set[int] = set()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere signals are not ours
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number in self._seen:
            signal.signal(number, self._before[number])
            signal.raise_signal(number)
        self._seen.add(number)
        self.asked = self.asked or number
