"""PKU-SafeRLHF: two responses, which is more helpful, which is safer, and how severe the harm of each is."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Source, Unlabelled

WORST = 3


class SafeHelpful(Source):
    """By `better_response_id`: helpfulness, whatever the harm."""

    shapes: ClassVar = (frozenset({"prompt", "response_0", "response_1", "better_response_id"}),)
    labels: ClassVar = "no strengths"
    strength: ClassVar = "1 for all: helpfulness is not graded"
    also: ClassVar = ("PKU-Alignment/PKU-SafeRLHF",)
    column: ClassVar = "better_response_id"

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        return bad.parse(rows, self._comparison)

    def _comparison(self, row: Row) -> Comparison:
        texts = Unlabelled(row.prompt("prompt"), row.text("response_0"), row.text("response_1"))
        second = row.integer(self.column, 0, 1) == 1
        return texts.compare(row, self.grade(row) * (1 if second else -1))

    def grade(self, row: Row) -> int:
        return 1


class SafeHarmless(SafeHelpful):
    """By `safer_response_id`: harmlessness. The strength is the difference of severity levels (0–3), at least 1."""

    shapes: ClassVar = (frozenset({"prompt", "response_0", "response_1", "safer_response_id"}),)
    labels: ClassVar = "severity levels"
    strength: ClassVar = "the difference of severity levels, at least 1"
    column: ClassVar = "safer_response_id"

    def grade(self, row: Row) -> int:
        columns = [f"response_{side}_severity_level" for side in (0, 1)]
        if not all(column in row for column in columns):
            return 1
        first, second = (row.integer(column, 0, WORST) for column in columns)
        return max(1, abs(first - second))
