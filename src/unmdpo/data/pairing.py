"""From scored responses to comparisons: which pairs are compared, and how strong each one is."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Literal

from unmdpo.data.strength import ROUNDING
from unmdpo.errors import UserError

Pairs = Literal["all", "neighbours"]


@dataclass(frozen=True)
class PairRule:
    """`all` pairs of a prompt's responses, or `neighbours` in the order of their scores.

    Two responses whose scores differ by less than `min_gap`, or not at all, are a tie.
    """

    pairs: Pairs = "all"
    min_gap: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_gap < math.inf:
            raise UserError(f"the minimum score gap should be a number from 0 up, not {self.min_gap}")

    def select(self, scores: Sequence[float]) -> Iterator[tuple[int, int, float]]:
        """Triples (better, worse, gap) of positions in `scores`; the gap of a tie is 0."""
        ranked = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
        chosen = combinations(ranked, 2) if self.pairs == "all" else pairwise(ranked)
        for better, worse in chosen:
            gap = scores[better] - scores[worse]
            yield better, worse, gap if gap * ROUNDING >= self.min_gap else 0.0
