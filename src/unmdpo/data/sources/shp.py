"""Stanford Human Preferences: two comments on a Reddit or StackExchange post, with the votes for each."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Source, Unlabelled

SPLITS = ("_train", "_validation", "_test")


class HumanPreferences(Source):
    """The comment that `labels` names (1: A, 0: B) is better. A pair's margin is the ratio of votes: its authors take
    those of at least 2 for a clear preference; that a further doubling makes a strong one is ours."""

    shapes: ClassVar = (frozenset({"history", "human_ref_A", "human_ref_B", "labels"}),)
    uses: ClassVar = frozenset({"strength"})
    thresholds: ClassVar = (2.0, 4.0)
    strength: ClassVar = "the ratio of votes: below 2, below 4, from 4"
    also: ClassVar = ("stanfordnlp/SHP", "stanfordnlp/SHP-2")

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        return bad.parse(rows, self._comparison)

    def _comparison(self, row: Row) -> Comparison:
        domain = row.optional_text("domain")
        for split in SPLITS:
            domain = domain.removesuffix(split)
        texts = Unlabelled(row.prompt("history"), row.text("human_ref_A"), row.text("human_ref_B"), domain)
        second = row.integer("labels", 0, 1) == 0
        return texts.compare(row, 1 if second else -1, margin=_ratio(row))


def _ratio(row: Row) -> float:
    """Better over worse. Scores may be zero or negative on StackExchange: there, everything counts as at least one."""
    low, high = sorted((row.number("score_A"), row.number("score_B")))
    return max(high, 1.0) / max(low, 1.0)
