"""HelpSteer3-Preference: conversations, two responses, up to three signed judgments each."""

from typing import ClassVar

from unmdpo.data.rows import Row
from unmdpo.data.sources.base import AnnotatedSource, HubData, Unlabelled

MAX_STRENGTH = 3


class HelpSteer3(AnnotatedSource):
    shapes: ClassVar = (frozenset({"context", "response1", "response2", "overall_preference"}),)
    label_columns: ClassVar = ("overall_preference", "individual_preference")
    hub: ClassVar = HubData(
        "nvidia/HelpSteer3", config="preference", pairs=36_299, prompts=22_756, validation_rows=2_017
    )

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


def annotator_scores(row: Row, column: str, key: str) -> tuple[int, ...]:
    """The signed strengths in a list of per-annotator objects."""
    scores = []
    for i, judgment in enumerate(row.items(column)):
        where = f"{column}[{i}].{key}"
        if not isinstance(judgment, dict) or key not in judgment:
            raise row.error(f"'{where}' is missing")
        scores.append(row.as_integer(where, judgment[key], -MAX_STRENGTH, MAX_STRENGTH))
    return tuple(scores)
