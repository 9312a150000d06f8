"""RewardBench 2's scores: how often the right response of several has the best score, and its score of ties."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

TIED, REFERENCE, PREFERRED, MARGIN = 0.3, 0.3, 0.2, 0.01  # weights of a ties score's parts; PREFERRED counts twice


class Answered(NamedTuple):
    """The scores of a prompt's right and wrong responses."""

    right: list[float]
    wrong: list[float]

    @property
    def gap(self) -> float:
        """By how much the worst right response beats the best wrong one."""
        return min(self.right) - max(self.wrong)

    @property
    def spread(self) -> float:
        """How far right responses are apart."""
        return max(self.right) - min(self.right)


def best_of(prompts: Sequence[Answered]) -> float:
    """The share of prompts whose one right response has the best score; with others that have the same, a part."""
    won = [
        0.0 if max(one.wrong) > one.right[0] else 1 / (1 + one.wrong.count(one.right[0]))
        for one in prompts
    ]  # fmt: skip
    return float(np.mean(won))


def ties(reference: Mapping[str, Answered], tied: Mapping[str, Answered]) -> float:
    """Prompts by id: those with one right response, and the same with several that are equally right. A judge should
    tell right from wrong, and not tell the right ones apart."""
    both = sorted(reference.keys() & tied.keys())
    spread, gap = (np.array([getattr(tied[name], what) for name in both]) for what in ("spread", "gap"))
    hard = np.minimum(gap, [reference[name].gap for name in both])
    with np.errstate(divide="ignore", invalid="ignore"):
        margin = np.nan_to_num(np.tanh(hard / spread - 1), nan=0.0)
    right = [float(np.mean([one.gap > 0 for one in some.values()])) for some in (tied, reference)]
    preferred = float(np.mean(gap > spread)) + float(np.mean(hard > spread))
    return TIED * right[0] + REFERENCE * right[1] + PREFERRED * preferred + MARGIN * float(np.mean(margin))
