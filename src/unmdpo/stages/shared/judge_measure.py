"""How good a judge is: as labels say, against length, and on RewardBench 2."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmdpo.core.errors import UserError
from unmdpo.data import Comparison
from unmdpo.data.reward_bench import TIES, BenchRow
from unmdpo.stats.calibration import Calibration, calibration
from unmdpo.stats.reward_bench import Answered, best_of, ties

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Accuracy:
    pairs: int
    judge: float  # share of pairs that it orders as the labels do; equal scores count half
    length: float  # that the longer response would


@dataclass(frozen=True)
class Measured:
    every: Accuracy
    by_strength: dict[str, Accuracy]
    by_domain: dict[str, Accuracy]
    calibration: Calibration

    @classmethod
    def of(cls, gaps: Floats, rows: Sequence[Comparison]) -> "Measured":
        """From how much better a judge finds each chosen response (n,)."""
        right = (gaps > 0) + 0.5 * (gaps == 0)
        longer = np.array([len(row.chosen) > len(row.rejected) for row in rows])

        def grouped(names: Sequence[str]) -> dict[str, Accuracy]:
            places = {name: np.array([one == name for one in names]) for name in sorted(set(names))}
            return {
                name: Accuracy(int(mine.sum()), float(right[mine].mean()), float(longer[mine].mean()))
                for name, mine in places.items()
            }

        strengths = grouped([f"{row.strength:g}" for row in rows])
        return cls(
            grouped([""] * len(rows))[""],
            strengths if all(name.isdigit() for name in strengths) else {},  # real numbers are no groups
            grouped([row.domain for row in rows]),
            calibration(gaps),
        )

    @property
    def table(self) -> dict[str, Accuracy]:
        """Over all pairs, for each strength, and for each domain if there are several."""
        strengths = {f"strength {name}": found for name, found in self.by_strength.items()}
        domains = {name or "(no domain)": found for name, found in self.by_domain.items()}
        return {"all": self.every, **strengths, **(domains if len(domains) > 1 else {})}

    def to_dict(self) -> dict[str, Any]:
        bins = [part._asdict() for part in self.calibration.bins]
        return {
            "all": asdict(self.every),
            "by_strength": {name: asdict(found) for name, found in self.by_strength.items()},
            "by_domain": {name: asdict(found) for name, found in self.by_domain.items()},
            "calibration": {"error": self.calibration.error, "bins": bins},
        }


def on_reward_bench(
    rows: Sequence[BenchRow], score: Callable[[Sequence[BenchRow]], list[Answered]]
) -> dict[str, float]:
    """Subset → RewardBench 2's score, and their mean."""
    answered = list(zip(rows, score(rows), strict=True))
    found = dict[str, float]()
    for subset in sorted({row.subset for row in rows}):
        mine = [(row, scores) for row, scores in answered if row.subset == subset]
        found[subset] = _ties(mine) if subset == TIES else best_of([scores for _, scores in mine])
    return found | {"mean": float(np.mean([*found.values()]))}


def _ties(mine: Sequence[tuple[BenchRow, Answered]]) -> float:
    kinds: Mapping[str, dict[str, Answered]] = {"ref": {}, "tied": {}}
    for row, scores in mine:
        kind, _, name = row.id.partition(":")
        kinds[kind][name] = scores
    if not kinds["ref"].keys() & kinds["tied"].keys():
        raise UserError(f"{TIES}: no prompt has both rows, 'ref:' and 'tied:'")
    return ties(kinds["ref"], kinds["tied"])
