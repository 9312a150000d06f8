"""HelpSteer3-Preference: conversations, two responses, up to three signed judgments each."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import AnnotatedSource, HubData, Source, Unlabelled

MAX_STRENGTH = 3


class HelpSteer3(AnnotatedSource):
    shapes: ClassVar = (frozenset({"context", "response1", "response2", "overall_preference"}),)
    label_columns: ClassVar = ("overall_preference", "individual_preference")
    hub: ClassVar = HubData(
        "nvidia/HelpSteer3", config="preference", pairs=36_299, prompts=22_756, validation_rows=2_017
    )
    strength: ClassVar = "|`overall_preference`|, 1–3"

    def unlabelled(self, row: Row) -> Unlabelled:
        return Unlabelled(
            prompt=row.prompt("context"),
            first=row.text("response1"),
            second=row.text("response2"),
            domain=row.optional_text("domain"),
            language=row.optional_text("language"),
        )

    def label(self, row: Row) -> int:
        return row.integer("overall_preference", -MAX_STRENGTH, MAX_STRENGTH)

    def votes(self, row: Row) -> tuple[int, ...]:
        if "individual_preference" not in row:
            return ()
        return annotator_scores(row, "individual_preference", "score")


class HelpSteer3Edits(Source):
    """The configurations `edit_quality` (a good and a bad edit) and `edit` (an edit and what it started from)."""

    shapes: ClassVar = (
        frozenset({"context", "good_edited_response", "bad_edited_response"}),
        frozenset({"context", "edited_response", "original_response"}),
    )
    labels: ClassVar = "no strengths"
    strength: ClassVar = "1 for all: edits are not graded"

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        return bad.parse(rows, self._comparison)

    def _comparison(self, row: Row) -> Comparison:
        good, worse = ("good_edited_response", "bad_edited_response")
        if good not in row.values:
            good, worse = ("edited_response", "original_response")
        texts = Unlabelled(
            row.prompt("context"), row.text(good), row.text(worse), row.optional_text("domain"),
            row.optional_text("language"),
        )  # fmt: skip
        return texts.compare(row, -1)


def annotator_scores(row: Row, column: str, key: str, unusable: int | None = None) -> tuple[int, ...]:
    """The signed strengths in a list of per-annotator objects; `unusable` stands for no strength at all."""
    scores = []
    for i, judgment in enumerate(row.items(column)):
        where = f"{column}[{i}].{key}"
        if not isinstance(judgment, dict) or key not in judgment:
            raise row.error(f"'{where}' is missing")
        if unusable is None or judgment[key] != unusable:
            scores.append(row.as_integer(where, judgment[key], -MAX_STRENGTH, MAX_STRENGTH))
    return tuple(scores)
