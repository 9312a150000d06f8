"""How strong is a preference? A label says so, or a score difference does, cut into levels."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmdpo.data.rows import Row
from unmdpo.errors import UnmdpoWarning, UserError

STRENGTH_COLUMNS = ("strength", "preference_strength")
ROUNDING = 1 + 1e-9  # 4.1 − 3.1 is a margin of one
DIFFERENCES = (("score_chosen", "score_rejected"), ("chosen_reward", "rejected_reward"))


@dataclass(frozen=True)
class StrengthRule:
    """Strengths 1…`levels`: from a column of strengths, or from margins cut at `thresholds`.

    A margin of at least the j-th threshold reaches level j+1. Without thresholds the margins'
    quantiles are the thresholds, and a margin must exceed one to pass it, so that a value which
    many rows share stays in one level.
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
        if not all(math.isfinite(threshold) for threshold in self.thresholds):
            raise UserError(f"strength thresholds should be finite: {list(self.thresholds)}")
        if any(a >= b for a, b in zip(self.thresholds, self.thresholds[1:], strict=False)):
            raise UserError(f"strength thresholds should increase: {list(self.thresholds)}")

    def cut(self, margins: Sequence[float]) -> list[int]:
        """The level of every margin; 0 (a tie) where the margin is zero."""
        values = np.asarray(margins, dtype=np.float64)
        positive = values[values > 0]
        if not positive.size:
            return [0] * len(values)
        if self.thresholds is not None:
            above = np.searchsorted(np.asarray(self.thresholds), values * ROUNDING, side="right")
        else:
            quantiles = np.quantile(positive, np.arange(1, self.levels) / self.levels)
            above = np.searchsorted(quantiles, values, side="left")
        levels = np.where(values > 0, 1 + above, 0)
        if self.thresholds is None and len(np.unique(levels[values > 0])) < self.levels:
            warnings.warn(
                f"the margins take too few values for {self.levels} strength levels of equal size; "
                f"levels found: {sorted({int(k) for k in levels if k > 0})}",
                UnmdpoWarning,
                stacklevel=2,
            )
        return [int(level) for level in levels]


def grade_columns(row: Row, rule: StrengthRule) -> tuple[str, ...]:
    """The columns that tell strength: one of strengths, one of margins, or two scores to subtract.

    Presence decides, not value: a row that has the column but no value in it is a bad row, not a row
    of another kind.
    """
    if rule.column is not None:
        return (rule.column,)
    candidates = [(name,) for name in (*STRENGTH_COLUMNS, "margin")] + list(DIFFERENCES)
    return next((names for names in candidates if row.values.keys() >= set(names)), ())


def grade(row: Row, columns: tuple[str, ...], rule: StrengthRule) -> float:
    """A strength 0…K from a column of strengths, else a margin yet to be cut into levels."""
    if are_strengths(columns, rule):
        return row.integer(columns[0], 0, rule.levels)
    values = [row.number(column) for column in columns]
    difference = values[0] if len(values) == 1 else values[0] - values[1]
    if difference < 0:
        raise row.error(
            f"the margin by {' − '.join(columns)} is {difference:g}: "
            "the rejected response is the better one; exchange the two or drop the row"
        )
    return difference


def are_strengths(columns: tuple[str, ...], rule: StrengthRule) -> bool:
    return columns == (rule.column,) or columns[0] in STRENGTH_COLUMNS
