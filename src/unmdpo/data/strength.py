"""How strong is a preference? A label says so, or a score difference does, cut into levels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmdpo.data.rows import Row
from unmdpo.errors import UserError

STRENGTH_COLUMNS = ("strength", "preference_strength")
DIFFERENCES = (("score_chosen", "score_rejected"), ("chosen_reward", "rejected_reward"))


@dataclass(frozen=True)
class StrengthRule:
    """Strengths 1…`levels`: from a column of strengths, or from margins cut at `thresholds`.

    A margin of at least the j-th threshold reaches level j+1. Without thresholds the margins'
    quantiles cut them into `levels` parts of about equal size.
    """

    levels: int = 3
    column: str | None = None
    thresholds: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.levels < 1:
            raise UserError(f"strength levels should be 1 or more, not {self.levels}")
        if self.thresholds is None:
            return
        if len(self.thresholds) != self.levels - 1:
            raise UserError(
                f"{self.levels} strength levels need {self.levels - 1} thresholds, not {len(self.thresholds)}"
            )
        if any(a >= b for a, b in zip(self.thresholds, self.thresholds[1:], strict=False)):
            raise UserError(f"strength thresholds should increase: {list(self.thresholds)}")

    def strength_column(self, row: Row) -> str | None:
        """The column that holds strengths outright, if the row has one."""
        if self.column is not None:
            return self.column
        return next((name for name in STRENGTH_COLUMNS if name in row), None)

    def cut(self, margins: Sequence[float]) -> list[int]:
        """The level of every margin; 0 (a tie) where the margin is zero."""
        values = np.asarray(margins, dtype=np.float64)
        levels = 1 + np.searchsorted(self._cutpoints(values[values > 0]), values, side="right")
        return [int(level) for level in np.where(values > 0, levels, 0)]

    def _cutpoints(self, positive: np.ndarray) -> np.ndarray:
        if self.thresholds is not None:
            return np.asarray(self.thresholds, dtype=np.float64)
        if not positive.size:
            return np.empty(0)
        quantiles = np.quantile(positive, np.arange(1, self.levels) / self.levels)
        return np.unique(quantiles[quantiles > positive.min()])


def margin_columns(row: Row) -> tuple[str, ...]:
    """The column, or the two to subtract, that hold a score difference; empty if there are none."""
    if "margin" in row:
        return ("margin",)
    return next((pair for pair in DIFFERENCES if pair[0] in row and pair[1] in row), ())


def margin(row: Row, columns: tuple[str, ...]) -> float:
    """How much better the chosen response scored; never negative."""
    values = [row.number(column) for column in columns]
    difference = values[0] if len(values) == 1 else values[0] - values[1]
    if difference < 0:
        raise row.error(
            f"the margin by {' − '.join(columns)} is {difference:g}: "
            "the rejected response is the better one; exchange the two or drop the row"
        )
    return difference
