"""How long a run still takes: its stages' expected seconds, corrected by how long they really take."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unmdpo.engine.training.metrics import roughly
from unmdpo.pipeline.plan import plan, speed_of
from unmdpo.pipeline.run import Run

COUNTED = re.compile(r"([\d,]+)/([\d,]+)\b")
OVERHEAD = 1.0  # seconds of any stage, in an estimate
ENOUGH = 0.02  # of the work, before a pace can be told


def expected_seconds(run: Run, stages: Sequence[str]) -> dict[str, float]:
    """What each stage will take on this machine, by the plan."""
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
    """Told what stages do, tells what is left. Nothing is known before it is `expected`."""

    expected: Mapping[str, float] = field(default_factory=dict)  # stage → seconds
    done: dict[str, float] = field(default_factory=dict)  # stage → share
    began: float = field(default_factory=time.monotonic)

    def expect(self, seconds: Mapping[str, float]) -> None:
        self.expected, self.began = seconds, time.monotonic()

    def note(self, stage: str, share: float) -> None:
        """A stage may count twice, such as updates and then what is scored: it does not go back."""
        self.done[stage] = max(share, self.done.get(stage, 0.0))

    @property
    def share(self) -> float:
        """Of the work that was expected."""
        total = sum(self.expected.values())
        made = sum(seconds * self.done.get(stage, 0.0) for stage, seconds in self.expected.items())
        return made / total if total else 0.0

    def told(self) -> str | None:
        """`about 3 minutes left`, once there is a pace to tell it by."""
        share = self.share
        if not ENOUGH <= share < 1:
            return None
        return f"{roughly((time.monotonic() - self.began) * (1 - share) / share)} left"
