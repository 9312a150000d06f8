"""How long a run still takes: its stages' expected seconds, corrected by how long they really take."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unmdpo.engine.training.metrics import roughly
from unmdpo.pipeline.plan import plan, speed_of
from unmdpo.pipeline.run import Run
from unmdpo.pipeline.stages.data import COMPARISONS_STAGE, ENCODED_STAGE

COUNTED = re.compile(r"([\d,]+)/([\d,]+)\b")
OVERHEAD = 1.0  # seconds of any stage, in an estimate
ENOUGH = 0.02  # of the work, before a pace can be told


def expected_seconds(run: Run, stages: Sequence[str]) -> dict[str, float]:
    """What each stage will take on this machine, by the plan. Nothing, where that would take long to find out: data
    that is not read yet, or a tokenizer in a GGUF file."""
    read, encoded = (kind.name in run.finished for kind in (COMPARISONS_STAGE, ENCODED_STAGE))
    if not read or (run.recipe.model.gguf_file is not None and not encoded):
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
    """Told what stages do, tells what is left. Nothing is known before it is `expected`."""

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

    def told(self) -> str | None:
        """`about 3 minutes left`, once there is a pace to tell it by."""
        share, now = self.share, self.share - self._of(self.there)  # the pace is that of this attempt
        if now < ENOUGH or share >= 1:
            return None
        return f"{roughly((time.monotonic() - self.began) * (1 - share) / now)} left"
