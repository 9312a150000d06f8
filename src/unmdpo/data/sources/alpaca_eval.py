"""AlpacaEval's and AlpacaFarm's annotations: two outputs and a preference from 1 (the first) to 2 (the second)."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Source, Unlabelled, asked

TIE, MIDDLE = 0, 1.5


class AlpacaEval(Source):
    """The margin is how far the preference is from the middle; 0 and 1.5 are ties."""

    shapes: ClassVar = (frozenset({"instruction", "output_1", "output_2", "preference"}),)
    uses: ClassVar = frozenset({"strength"})
    strength: ClassVar = "thresholds on the distance of `preference` from 1.5, doubled: 0–1"
    also: ClassVar = ("tatsu-lab/alpaca_eval", "tatsu-lab/alpaca_farm")

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        return bad.parse(rows, self._comparison)

    def _comparison(self, row: Row) -> Comparison:
        if row.value("preference") is None:
            raise row.no_comparison("the judge gave no verdict")
        preference = row.number("preference")
        if preference != TIE and not 1 <= preference <= 2:
            raise row.error(f"'preference' should be from 1 to 2, or 0 for a tie, not {preference:g}")
        label = 0.0 if preference == TIE else 2 * (preference - MIDDLE)
        request = row.text("instruction")
        if row.optional_text("input"):
            request = f"{request}\n\n{row.text('input')}"
        texts = Unlabelled(
            row.check_prompt("instruction", asked(request)), row.text("output_1"), row.text("output_2"),
            row.optional_text("dataset"),
        )  # fmt: skip
        return texts.compare(row, label, margin=abs(label))
