"""PandaLM's test set: three human votes per pair, each "first", "second" or "same"."""

from typing import ClassVar

from unmdpo.data.identity import Message
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import AnnotatedSource, Unlabelled

ANNOTATORS = ("annotator1", "annotator2", "annotator3")
VOTE = (0, -1, 1)  # same, first, second


class PandaLM(AnnotatedSource):
    """A pair's strength is its net number of votes, 1 to 3; zero is a tie."""

    shapes: ClassVar = (frozenset({"instruction", "response1", "response2", *ANNOTATORS}),)
    label_columns: ClassVar = ANNOTATORS

    def unlabelled(self, row: Row) -> Unlabelled:
        instruction, extra = row.text("instruction"), row.optional_text("input")
        request = f"{instruction}\n\n{extra}" if extra else instruction
        return Unlabelled(
            prompt=row.check_prompt("instruction", (Message("user", request),)),
            first=row.text("response1"),
            second=row.text("response2"),
        )

    def label(self, row: Row) -> int:
        return sum(self.votes(row))

    def votes(self, row: Row) -> tuple[int, ...]:
        return tuple(VOTE[row.integer(annotator, 0, 2)] for annotator in ANNOTATORS)
