"""How strong is a preference? A label says so, or a score difference, which is cut into levels or taken as it is.

`PairRule` says which of several scored responses are compared.
"""

import math
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from unmdpo.core.errors import UnmdpoWarning, did_you_mean
from unmdpo.core.settings import Nonnegative, Strict, Thresholds
from unmdpo.data.comparison import Comparison
from unmdpo.data.rows import Row

STRENGTH_COLUMNS = ("strength", "preference_strength")
LEVELS = 3  # K, if nothing else is said
SIDES = {"a": -1, "b": 1, "tie": 0}
MOST_PAIRS = 10_000  # of one prompt
ROUNDING = 1 + 1e-9  # 4.1 − 3.1 is a margin of one
DIFFERENCES = (
    ("score_chosen", "score_rejected"),
    ("chosen_reward", "rejected_reward"),
    ("chosen_score", "rejected_score"),
    ("chosen_rating", "rejected_rating"),
    ("rating_chosen", "rating_rejected"),
    ("chosen-rating", "rejected-rating"),
    ("chosen_avg_rating", "rejected_avg_rating"),
)
RATINGS = "rating"  # a list of two, next to `generations`, in no certain order


def _words(labels: Any) -> Any:
    """Labels as they are compared: without white space, numbers as they are written; sides as signs."""
    if not isinstance(labels, dict):
        return labels
    return {str(label).strip(): SIDES.get(meaning, meaning) for label, meaning in labels.items()}


class StrengthRule(Strict):
    """Strengths 1…`levels`, from a strength column or from margins cut at `thresholds`; or real ones, not cut at all.

    A margin of at least the j-th threshold reaches level j+1. Without thresholds, the margins' quantiles are used, and
    a margin must exceed a quantile to pass it: a value shared by many rows then stays in one level.
    """

    levels: Annotated[int, Field(ge=1, le=1000)] = Field(LEVELS, description="K, the number of strength levels")
    column: str | None = Field(None, description="column that holds the strengths themselves")
    labels: Annotated[dict[str, int] | None, BeforeValidator(_words)] = Field(
        None,
        description="the strengths that words or numbers mean, such as {slightly better: 1, much better: 3}; of two "
        "responses side by side with a sign, negative for the first, or a, b and tie",
    )
    thresholds: Thresholds = Field(
        None, description="K-1 increasing margins; a margin of at least the j-th reaches level j+1"
    )
    continuous: bool = Field(False, description="take strengths, or margins, as the real numbers that they are")

    @model_validator(mode="after")
    def _thresholds_fit(self) -> Self:
        given = self.thresholds
        if self.continuous and (self.labels, given, self.levels) != (None, None, LEVELS):
            raise ValueError("continuous strengths have no levels: leave out levels, labels and thresholds")
        if given is not None and len(given) != self.levels - 1:
            raise ValueError(f"{self.levels} strength levels need {self.levels - 1} thresholds, not {len(given)}")
        if given is not None and any(a >= b for a, b in pairwise(given)):
            raise ValueError(f"strength thresholds should increase: {list(given)}")
        most = max(map(abs, (self.labels or {}).values()), default=0)
        if most > self.levels:
            raise ValueError(f"labels go up to {most}, but there are {self.levels} levels")
        return self

    def quantiles(self, margins: Sequence[float]) -> tuple[float, ...] | None:
        """Where these margins are cut, unless thresholds say so, all of them are zero, or none is cut."""
        values = np.asarray(margins, dtype=np.float64)
        positive = values[values > 0]
        if self.continuous or self.thresholds is not None or not positive.size:
            return None
        return tuple(np.quantile(positive, np.arange(1, self.levels) / self.levels).tolist())

    def cut(self, margins: Sequence[float], quantiles: Sequence[float] | None = None) -> list[int] | list[float]:
        """The level of every margin; 0 (a tie) if the margin is zero. `quantiles` are those of other margins, such as
        the training data's. Continuous strengths are the margins themselves."""
        values = np.asarray(margins, dtype=np.float64)
        if self.continuous:
            return [float(value) for value in values]
        own = self.quantiles(margins) if quantiles is None else None
        if not (values > 0).any():
            return [0] * len(values)
        if self.thresholds is not None:
            above = np.searchsorted(np.asarray(self.thresholds), values * ROUNDING, side="right")
        else:
            above = np.searchsorted(np.asarray(own if quantiles is None else quantiles), values, side="left")
        levels = np.where(values > 0, 1 + above, 0)
        if own is not None and len(np.unique(levels[values > 0])) < self.levels:
            warnings.warn(
                f"the margins take too few distinct values for {self.levels} strength levels of equal size; "
                f"levels used: {sorted({int(k) for k in levels if k > 0})}",
                UnmdpoWarning,
                stacklevel=2,
            )
        return [int(level) for level in levels]

    def graded(self, rows: "Sequence[Comparison]") -> "list[Comparison]":
        """Rows with a margin, with the strengths that follow from all of them."""
        levels = iter(self.cut([row.margin for row in rows if row.margin is not None]))
        return [row if row.margin is None else replace(row, strength=next(levels), margin=None) for row in rows]


class PairRule(Strict):
    """`all` pairs of a prompt's responses, or only `neighbours` in the order of their scores.

    Two responses whose scores differ by less than `min_gap`, or not at all, are a tie. Of more than `most` pairs so
    many are drawn: pairs grow with the square of the responses, and one prompt should not be the whole data.
    """

    pairs: Literal["all", "neighbours"] = Field("all", description="every pair, or neighbours in the order of scores")
    min_gap: Nonnegative = Field(0.0, description="smaller differences of scores are ties")
    most: Annotated[int, Field(ge=1, le=MOST_PAIRS)] = Field(
        MOST_PAIRS, description="pairs of one prompt; then some are drawn"
    )

    def select(self, scores: Sequence[float]) -> Iterator[tuple[int, int, float]]:
        """Triples (better, worse, gap) of positions in `scores`; the gap of a tie is 0."""
        ranked = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
        chosen = self._drawn(scores) if self.pairs == "all" else pairwise(range(len(ranked)))
        for better, worse in ((ranked[first], ranked[second]) for first, second in chosen):
            gap = scores[better] - scores[worse]
            yield better, worse, gap if gap * ROUNDING >= self.min_gap else 0.0

    def left_out(self, responses: int) -> int:
        """How many pairs of so many responses are not selected, because there are too many."""
        return max(0, math.comb(responses, 2) - self.most) if self.pairs == "all" else 0

    def _drawn(self, scores: Sequence[float]) -> Iterator[tuple[int, int]]:
        """All pairs of ranks, or `most` of them: the same for the same scores, and others for others."""
        count = len(scores)
        total = math.comb(count, 2)
        if total <= self.most:
            yield from combinations(range(count), 2)
            return
        for place in sorted(random.Random(repr(list(scores))).sample(range(total), self.most)):
            left = total - 1 - place  # pairs after this one, in the order of `combinations`
            row = (math.isqrt(8 * left + 1) - 1) // 2
            first = count - 2 - row
            yield first, count - 1 - (left - row * (row + 1) // 2)


def grade_columns(row: Row, rule: StrengthRule) -> tuple[str, ...]:
    """The columns that give the strength: a strength column, a margin column, or two scores to subtract.

    What counts is whether a column is present: a row without a value in it is a bad row, not a row of another kind.
    """
    return (rule.column,) if rule.column is not None else next(graded_by(row), ())


def graded_by(row: Row) -> Iterator[tuple[str, ...]]:
    """All the columns that could give a row's strength, the plainest first."""
    candidates = [(name,) for name in (*STRENGTH_COLUMNS, "margin")] + list(DIFFERENCES)
    yield from (names for names in candidates if row.values.keys() >= set(names))
    if {RATINGS, "generations"} <= row.values.keys():
        yield (RATINGS,)


def grade(row: Row, columns: tuple[str, ...], rule: StrengthRule) -> float:
    """A strength 0…K if the column holds strengths, otherwise a margin still to be cut into levels."""
    if are_strengths(columns, rule):
        return (
            row.integer(columns[0], 0, rule.levels) if rule.labels is None else _labelled(row, columns[0], rule.labels)
        )
    if columns == (RATINGS,):
        ratings = [row.as_number(RATINGS, item) for item in row.items(RATINGS)]
        if len(ratings) != 2:
            raise row.error(f"'{RATINGS}' should hold two numbers, not {len(ratings)}")
        return _rating_gap(row, *ratings)
    values = [row.number(column) for column in columns]
    difference = values[0] if len(values) == 1 else values[0] - values[1]
    if difference < 0:
        what = "strength" if len(columns) == 1 and columns[0] != "margin" else "margin"
        raise row.error(
            f"the {what} {' − '.join(columns)} is {difference:g}: "
            "the rejected response is the better one; swap the two or drop the row"
        )
    return difference


def _rating_gap(row: Row, first: float, second: float) -> float:
    """The chosen response's rating over the other's, if it is among the rated texts."""
    rated, chosen = row.values.get("generations"), row.values.get("chosen")
    if not isinstance(rated, list) or chosen not in rated:
        return abs(first - second)
    gap = first - second if rated[0] == chosen else second - first
    if gap < 0:
        raise row.error(f"the chosen response is rated lower, by {-gap:g}; swap the two or drop the row")
    return gap


def _labelled(row: Row, column: str, labels: Mapping[str, int]) -> int:
    strength = signed(row, column, row.value(column), labels)
    if strength < 0:
        raise row.error(f"'{column}' says that the rejected response is the better one; swap the two or drop the row")
    return strength


def signed(row: Row, column: str, label: object, labels: Mapping[str, int]) -> int:
    """What a label means, as the user says."""
    word = str(label).strip()
    if word not in labels:
        raise row.error(
            f"'{column}' is {word[:40]!r}, which strength.labels does not list; {did_you_mean(word, labels)}"
        )
    return labels[word]


def are_strengths(columns: tuple[str, ...], rule: StrengthRule) -> bool:
    """Whether a column holds levels, not margins that are to be cut or are continuous strengths."""
    if rule.continuous:
        return False
    return columns == (rule.column,) or columns[0] in STRENGTH_COLUMNS
