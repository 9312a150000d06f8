"""Is a scale worth its pilots? What policies won with such scales in the lab, where the truth is known."""

import math
from typing import NamedTuple

from scipy.stats import t as students_t


class Won(NamedTuple):
    """Win rates against q ≡ 1 in percent, of one policy in each of some simulated worlds."""

    worlds: int
    mean: float
    deviation: float

    @property
    def expected(self) -> tuple[float, float]:
        """Between which 95 % of such worlds lie (Student's prediction interval)."""
        half = students_t.ppf(0.975, self.worlds - 1) * self.deviation * math.sqrt(1 + 1 / self.worlds)
        return self.mean - half, self.mean + half


# `python -m benchmarks.lab expect --seeds 4`; the gain's size says little more (docs/method/when-q-helps.md)
BETTER, OTHERS = Won(17, 51.0, 1.3), Won(55, 50.5, 1.1)


def expectation(better: bool) -> str:
    """What a policy may win with a scale that is, or is not, better than q ≡ 1 on unseen prompts."""
    found = BETTER if better else OTHERS
    low, high = found.expected
    scales = "whose scale was better than q ≡ 1" if better else "whose scale was not shown to be better"
    return (
        f"Worth it? In {found.worlds} simulated worlds {scales}, policies trained with it won {found.mean:.1f} % "
        f"against those with q ≡ 1; in such a world expect {low:.0f} to {high:.0f} %"
    )
