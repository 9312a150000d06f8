"""Reports how far a loop is, now and then."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
Report = Callable[[str], object]
SECONDS = 1.0  # between two reports


class Tally:
    """Reports `1,200/8,000 pairs scored`, at most once a second."""

    def __init__(self, report: Report | None, total: int, what: str) -> None:
        self.report, self.total, self.what = report, total, what
        self.count, self._told = 0, time.monotonic()

    def add(self, count: int = 1) -> None:
        self.count += count
        if self.report is not None and time.monotonic() - self._told >= SECONDS:
            self._told = time.monotonic()
            self.report(f"{min(self.count, self.total):,}/{self.total:,} {self.what}")

    def over(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            yield item
            self.add()
