"""How a run reports progress: one view for all stages, wherever they run."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from unmdpo.errors import printable
from unmdpo.pipeline.remaining import Remaining, fraction


class View:
    """The silent base class; subclasses override the events they want to show."""

    wants_estimates = False  # they take a second to make

    def expected(self, seconds: Mapping[str, float]) -> None:
        """What the stages that will run now are expected to take."""

    def noted(self, text: str) -> None: ...

    def cached(self, stage: str) -> None: ...

    def started(self, stage: str) -> None: ...

    def progress(self, stage: str, text: str) -> None: ...

    def retried(self, stage: str, why: str) -> None: ...

    def finished(self, stage: str, seconds: float) -> None: ...

    def failed(self, stage: str, problem: str) -> None: ...


class Events(View):
    """Calls a function with every event: what happened (`event`), when, to which stage, and what was said."""

    def __init__(self, told: Callable[[dict[str, Any]], object]) -> None:
        self.told = told

    def _tell(self, event: str, **facts: object) -> None:
        self.told({"event": event, "time": round(time.time(), 3), **facts})

    def noted(self, text: str) -> None:
        self._tell("note", text=text)

    def cached(self, stage: str) -> None:
        self._tell("cached", stage=stage)

    def started(self, stage: str) -> None:
        self._tell("started", stage=stage)

    def progress(self, stage: str, text: str) -> None:
        self._tell("progress", stage=stage, share=fraction(text), text=text)

    def retried(self, stage: str, why: str) -> None:
        self._tell("retried", stage=stage, text=why)

    def finished(self, stage: str, seconds: float) -> None:
        self._tell("finished", stage=stage, seconds=round(seconds, 3))

    def failed(self, stage: str, problem: str) -> None:
        self._tell("failed", stage=stage, text=problem)


class Lines(View):
    """A plain line per event; for progress, at most one line per stage and interval."""

    wants_estimates = True

    def __init__(self, stream: TextIO | None = None, interval: float = 30.0) -> None:
        self.stream, self.interval, self.began = stream or sys.stderr, interval, time.monotonic()
        self.shown: dict[str, float] = {}
        self.remaining = Remaining()

    def expected(self, seconds: Mapping[str, float]) -> None:
        self.remaining.expect(seconds)

    def noted(self, text: str) -> None:
        self._print(text)

    def started(self, stage: str) -> None:
        self.shown[stage] = time.monotonic()
        self._print(f"{stage}: started")

    def progress(self, stage: str, text: str) -> None:
        self.remaining.note(stage, fraction(text) or 0.0)
        if time.monotonic() - self.shown.get(stage, 0.0) >= self.interval:
            self.shown[stage] = time.monotonic()
            self._print(f"{stage}: {text}")

    def retried(self, stage: str, why: str) -> None:
        self._print(f"{stage}: {why}")

    def finished(self, stage: str, seconds: float) -> None:
        self.remaining.note(stage, 1.0)
        left = self.remaining.told()
        self._print(f"{stage}: finished in {seconds:.1f} s{f'; {left}' if left else ''}")

    def failed(self, stage: str, problem: str) -> None:
        lines = [line for line in problem.splitlines() if line.strip()] or [""]
        self._print(f"{stage}: failed: {lines[-1] if lines[0].startswith('Traceback') else lines[0]}")

    def _print(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:7.1f} s] {printable(text)}", file=self.stream, flush=True)
