"""How a run reports progress: one view for all stages, wherever they run, and the time that remains."""

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from unmdpo.core.errors import printable
from unmdpo.engine.training.metrics import roughly
from unmdpo.execute.plan import plan, speed_of
from unmdpo.stages.data import COMPARISONS_STAGE
from unmdpo.stages.pipeline import Pipeline

COUNTED = re.compile(r"([\d,]+)/([\d,]+)\b")
OVERHEAD = 1.0  # seconds of any stage, in an estimate
ENOUGH = 0.02  # of the work, before the pace is known


def expected_seconds(run: Pipeline, stages: Sequence[str]) -> dict[str, float]:
    """What each stage will take on this machine, by the plan. Nothing while data is not read yet."""
    if COMPARISONS_STAGE.name not in run.finished:
        return {}
    speed = speed_of("this")
    costs = {stage.stage: stage.cost for stage in plan(run).stages}
    return {name: OVERHEAD + costs[name].seconds(speed) for name in stages}


def fraction(text: str) -> float | None:
    """How much of a stage is done, if its progress counts: `12/150 · loss 0.6`."""
    found = COUNTED.match(text)
    if found is None:
        return None
    part, whole = (int(number.replace(",", "")) for number in found.groups())
    return min(1.0, part / whole) if whole else None


@dataclass
class Remaining:
    """Follows what stages do, and estimates the time that remains once `expected` is known."""

    expected: Mapping[str, float] = field(default_factory=dict)  # stage → seconds
    done: dict[str, float] = field(default_factory=dict)  # stage → share
    there: dict[str, float] = field(default_factory=dict)  # stage → what earlier attempts had done of it
    began: float = field(default_factory=time.monotonic)

    def expect(self, seconds: Mapping[str, float]) -> None:
        self.expected, self.began = seconds, time.monotonic()

    def note(self, stage: str, share: float) -> None:
        """A stage may count twice, such as updates and then what is scored: it does not go back."""
        if share < 1:
            self.there.setdefault(stage, share)
        self.done[stage] = max(share, self.done.get(stage, 0.0))

    @property
    def share(self) -> float:
        """Of the work that was expected."""
        return self._of(self.done)

    def _of(self, shares: Mapping[str, float]) -> float:
        total = sum(self.expected.values())
        made = sum(seconds * shares.get(stage, 0.0) for stage, seconds in self.expected.items())
        return made / total if total else 0.0

    def text(self) -> str | None:
        """`about 3 minutes left`, once the pace is known."""
        share, now = self.share, self.share - self._of(self.there)  # the pace is that of this attempt
        if now < ENOUGH or share >= 1:
            return None
        return f"{roughly((time.monotonic() - self.began) * (1 - share) / now)} left"


class View:
    """The silent base class; subclasses override the events they want to show."""

    wants_estimates = False  # they take a second to make

    def expected(self, seconds: Mapping[str, float]) -> None:
        """What the stages that will run now are expected to take."""

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

    wants_estimates = True

    def __init__(self, stream: TextIO | None = None, interval: float = 60.0) -> None:
        self.stream, self.interval, self.began = stream or sys.stderr, interval, time.monotonic()
        self.last, self.working = self.began, dict[str, str]()  # when a line was printed; stage → progress
        self.remaining = Remaining()

    def expected(self, seconds: Mapping[str, float]) -> None:
        self.remaining.expect(seconds)

    def noted(self, text: str) -> None:
        self._print(text)

    def queued(self, stage: str) -> None:
        self._print(f"{stage}: queued")

    def started(self, stage: str, where: str = "") -> None:
        self._print(f"{stage}: started{where and ' on ' + where}")

    def progress(self, stage: str, text: str) -> None:
        share = fraction(text)
        if share is None:
            self._print(f"{stage}: {text}")
            return
        self.remaining.note(stage, share)
        self.working[stage] = text
        if time.monotonic() - self.last >= self.interval:
            left = self.remaining.text()
            self._print(
                "; ".join([*(f"{name}: {said}" for name, said in self.working.items()), *([left] if left else [])])
            )

    def retried(self, stage: str, why: str) -> None:
        self._print(f"{stage}: {why}")

    def finished(self, stage: str, seconds: float) -> None:
        said = self.working.pop(stage, "")
        self.remaining.note(stage, 1.0)
        left = self.remaining.text()
        loss = f" ({said.partition(' pairs/s')[0].rpartition(' · ')[0]})" if "loss" in said else ""
        self._print(f"{stage}: finished in {seconds:.1f} s{loss}{f'; in all {left}' if left else ''}")

    def failed(self, stage: str, problem: str) -> None:
        self.working.pop(stage, None)
        lines = [line for line in problem.splitlines() if line.strip()] or [""]
        self._print(f"{stage}: failed: {lines[-1] if lines[0].startswith('Traceback') else lines[0]}")

    def _print(self, text: str) -> None:
        self.last = time.monotonic()
        print(f"[{time.monotonic() - self.began:7.1f} s] {printable(text)}", file=self.stream, flush=True)
