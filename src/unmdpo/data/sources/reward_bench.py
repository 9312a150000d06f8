"""Lists of good and bad answers to a prompt, as in RewardBench 2 and RM-Bench: every good one beats every bad one."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Source, Unlabelled

COLUMNS = ("chosen", "rejected")


class GoodAndBad(Source):
    shapes: ClassVar = (frozenset({"prompt", *COLUMNS}),)
    labels: ClassVar = "no strengths"
    strength: ClassVar = "1 for all: answers are good or bad"
    also: ClassVar = ("allenai/reward-bench-2", "THU-KEG/RM-Bench")

    @classmethod
    def fits(cls, row: Row) -> bool:
        lists = [row.values.get(column) for column in COLUMNS]
        return super().fits(row) and all(
            isinstance(items, list) and bool(items) and all(isinstance(item, str) for item in items) for items in lists
        )

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        for pairs in bad.parse(rows, self._pairs):
            yield from pairs

    def _pairs(self, row: Row) -> list[Comparison]:
        prompt, domain = row.prompt("prompt"), row.optional_text("subset")
        good, bad = ([_text(row, column, item) for item in row.items(column)] for column in COLUMNS)
        if not good or not bad:
            raise row.no_comparison("there is no good or no bad answer")
        return [Unlabelled(prompt, a, b, domain).compare(row, -1) for a in good for b in bad if a != b]


def _text(row: Row, column: str, item: object) -> str:
    if not isinstance(item, str):
        raise row.error(f"'{column}' should be a list of texts")
    return row.encodable(column, item)
