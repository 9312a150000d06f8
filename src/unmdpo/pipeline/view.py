"""How a run reports progress: one view for all stages, wherever they run."""

import sys
import time
from typing import TextIO

from unmdpo.errors import printable


class View:
    """The silent base class; subclasses override the events they want to show."""

    def noted(self, text: str) -> None: ...

    def cached(self, stage: str) -> None: ...

    def started(self, stage: str) -> None: ...

    def progress(self, stage: str, text: str) -> None: ...

    def retried(self, stage: str, why: str) -> None: ...

    def finished(self, stage: str, seconds: float) -> None: ...

    def failed(self, stage: str, problem: str) -> None: ...


class Lines(View):
    """A plain line per event; for progress, at most one line per stage and interval."""

    def __init__(self, stream: TextIO | None = None, interval: float = 30.0) -> None:
        self.stream, self.interval, self.began = stream or sys.stderr, interval, time.monotonic()
        self.shown: dict[str, float] = {}

    def noted(self, text: str) -> None:
        self._print(text)

    def started(self, stage: str) -> None:
        self.shown[stage] = time.monotonic()
        self._print(f"{stage}: started")

    def progress(self, stage: str, text: str) -> None:
        if time.monotonic() - self.shown.get(stage, 0.0) >= self.interval:
            self.shown[stage] = time.monotonic()
            self._print(f"{stage}: {text}")

    def retried(self, stage: str, why: str) -> None:
        self._print(f"{stage}: {why}")

    def finished(self, stage: str, seconds: float) -> None:
        self._print(f"{stage}: finished in {seconds:.1f} s")

    def failed(self, stage: str, problem: str) -> None:
        lines = [line for line in problem.splitlines() if line.strip()] or [""]
        self._print(f"{stage}: failed: {lines[-1] if lines[0].startswith('Traceback') else lines[0]}")

    def _print(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:7.1f} s] {printable(text)}", file=self.stream, flush=True)
