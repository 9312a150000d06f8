"""How a run reports progress: one view for all stages, wherever they run."""

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from unmdpo.core.errors import printable

COUNTED = re.compile(r"([\d,]+)/([\d,]+)\b")
SILENT_SECONDS = 60.0  # after which a stage is shown with the time since its last sign of life


def fraction(text: str) -> float | None:
    """How much of a stage is done, if its progress counts: `12/150 · loss 0.6`."""
    found = COUNTED.match(text)
    if found is None:
        return None
    part, whole = (int(number.replace(",", "")) for number in found.groups())
    return min(1.0, part / whole) if whole else None


@dataclass
class Working:
    """A stage at work."""

    text: str  # its progress
    began: float
    heard: float  # its last sign of life

    @property
    def shown(self) -> str:
        silent = time.monotonic() - self.heard
        return f"{self.text} (no sign of life for {silent:.0f} s)" if silent > SILENT_SECONDS else self.text


class View:
    """The silent base class; subclasses override the events they want to show."""

    def noted(self, text: str) -> None: ...

    def cached(self, stage: str) -> None: ...

    def queued(self, stage: str) -> None:
        """It waits for a place on a cluster."""

    def started(self, stage: str, where: str = "") -> None: ...

    def progress(self, stage: str, text: str) -> None: ...

    def retried(self, stage: str, why: str) -> None: ...

    def finished(self, stage: str, seconds: float) -> None: ...

    def failed(self, stage: str, problem: str) -> None: ...


class Events(View):
    """Calls a function with every event: what happened (`event`), when, to which stage, and what was said."""

    def __init__(self, send: Callable[[dict[str, Any]], object]) -> None:
        self.send = send

    def _send(self, event: str, **facts: object) -> None:
        self.send({"event": event, "time": round(time.time(), 3), **facts})

    def noted(self, text: str) -> None:
        self._send("note", text=text)

    def cached(self, stage: str) -> None:
        self._send("cached", stage=stage)

    def queued(self, stage: str) -> None:
        self._send("queued", stage=stage)

    def started(self, stage: str, where: str = "") -> None:
        self._send("started", stage=stage, **({"where": where} if where else {}))

    def progress(self, stage: str, text: str) -> None:
        self._send("progress", stage=stage, share=fraction(text), text=text)

    def retried(self, stage: str, why: str) -> None:
        self._send("retried", stage=stage, text=why)

    def finished(self, stage: str, seconds: float) -> None:
        self._send("finished", stage=stage, seconds=round(seconds, 3))

    def failed(self, stage: str, problem: str) -> None:
        self._send("failed", stage=stage, text=problem)


class Lines(View):
    """A plain line when something starts or ends, or says more than a count; in between at most one per interval,
    about all that is going on."""

    def __init__(self, stream: TextIO | None = None, interval: float = 60.0, stages: int = 0) -> None:
        self.stream = stream or sys.stderr
        self.interval = interval
        self.stages = stages  # that should be finished at the end; 0: nobody counts
        self.began = time.monotonic()
        self.printed_at = self.began
        self.finished_stages = 0
        self.working: dict[str, Working] = {}

    def noted(self, text: str) -> None:
        self._print(text)

    def cached(self, stage: str) -> None:
        self.finished_stages += 1

    def queued(self, stage: str) -> None:
        self._print(f"{stage}: queued")

    def started(self, stage: str, where: str = "") -> None:
        now = time.monotonic()
        self.working[stage] = Working("at work", now, now)
        self._print(f"{stage}: started{where and ' on ' + where}")

    def progress(self, stage: str, text: str) -> None:
        if fraction(text) is None:
            self._print(f"{stage}: {text}")
            return
        now = time.monotonic()
        began = self.working[stage].began if stage in self.working else now
        self.working[stage] = Working(text, began, now)
        if now - self.printed_at >= self.interval:
            self._print("; ".join(f"{name}: {working.shown}" for name, working in self.working.items()))

    def retried(self, stage: str, why: str) -> None:
        self._print(f"{stage}: {why}")

    def finished(self, stage: str, seconds: float) -> None:
        self.finished_stages += 1
        working = self.working.pop(stage, None)
        text = "" if working is None else working.text
        loss = f" ({text.partition(' pairs/s')[0].rpartition(' · ')[0]})" if "loss" in text else ""
        left = self.stages - self.finished_stages
        count = f"; {left} stage{'s' if left > 1 else ''} left" if left > 0 else ""
        self._print(f"{stage}: finished in {seconds:.1f} s{loss}{count}")

    def failed(self, stage: str, problem: str) -> None:
        self.working.pop(stage, None)
        lines = [line for line in problem.splitlines() if line.strip()] or [""]
        self._print(f"{stage}: failed: {lines[-1] if lines[0].startswith('Traceback') else lines[0]}")

    def _print(self, text: str) -> None:
        self.printed_at = time.monotonic()
        print(f"[{time.monotonic() - self.began:7.1f} s] {printable(text)}", file=self.stream, flush=True)
