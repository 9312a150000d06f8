"""PandaLM: a test set with three human votes per pair, and a training set with one verdict by a model."""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import AnnotatedSource, Source, Unlabelled, asked

ANNOTATORS = ("annotator1", "annotator2", "annotator3")
VOTE = (0, -1, 1)  # same, first, second


class PandaLM(AnnotatedSource):
    """A pair's strength is its net number of votes, 1 to 3; zero is a tie."""

    shapes: ClassVar = (frozenset({"instruction", "response1", "response2", *ANNOTATORS}),)
    label_columns: ClassVar = ANNOTATORS
    strength: ClassVar = "the net number of votes, 1–3"

    def unlabelled(self, row: Row) -> Unlabelled:
        return _texts(row)

    def label(self, row: Row) -> int:
        return sum(self.votes(row))

    def votes(self, row: Row) -> tuple[int, ...]:
        return tuple(VOTE[row.integer(annotator, 0, 2)] for annotator in ANNOTATORS)


class PandaLMTraining(Source):
    """`inputs` with two responses, `outputs` with the verdict: "1", "2" or "Tie"."""

    shapes: ClassVar = (frozenset({"inputs", "outputs"}),)
    labels: ClassVar = "no strengths"
    strength: ClassVar = "1 for all: verdicts are not graded"
    verdicts: ClassVar = {"1": -1, "2": 1, "tie": 0}

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        return bad.parse(rows, self._comparison)

    def _comparison(self, row: Row) -> Comparison:
        inputs, outputs = row.value("inputs"), row.value("outputs")
        if not isinstance(inputs, Mapping) or not isinstance(outputs, Mapping):
            raise row.error("'inputs' and 'outputs' should be objects")
        verdict = str(outputs.get("evaluation_result")).strip().lower()
        if verdict not in self.verdicts:
            raise row.error(f"'outputs.evaluation_result' should be 1, 2 or Tie, not {verdict[:40]}")
        return _texts(Row(inputs, row.origin)).compare(row, self.verdicts[verdict])


def _texts(row: Row) -> Unlabelled:
    instruction, extra = row.text("instruction"), row.optional_text("input")
    request = f"{instruction}\n\n{extra}" if extra else instruction
    prompt = row.check_prompt("instruction", asked(request))
    return Unlabelled(prompt, row.text("response1"), row.text("response2"))
