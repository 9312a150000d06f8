"""Scored responses: several answers to a prompt, each with one or more scores.

A response's score is the mean of its scores; `PairRule` says which responses are compared, `StrengthRule` how strong a
score gap is.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple

from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison, Origin
from unmdpo.data.identity import Prompt, prompt_hash
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Source
from unmdpo.data.strength import PairRule


class Answer(NamedTuple):
    prompt: Prompt
    text: str
    score: float
    origin: Origin
    domain: str = ""
    language: str = ""


class Scored(Source):
    """A row per response (`prompt`, `response`, `score` or `scores`), or per prompt (`prompt`, `responses`, `scores`).

    The responses to a prompt may be anywhere in the data, so all of them are held in memory.
    """

    shapes: ClassVar[tuple[frozenset[str], ...]] = (
        frozenset({"prompt", "response", "score"}),
        frozenset({"prompt", "response", "scores"}),
        frozenset({"prompt", "responses", "scores"}),
    )
    uses: ClassVar = frozenset({"strength", "pairing"})
    strength: ClassVar = "thresholds on score differences"

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        prompts: dict[str, list[Answer]] = {}
        for answers in bad.parse(rows, self.answers):
            for answer in answers:
                prompts.setdefault(prompt_hash(answer.prompt), []).append(answer)
        for answers in prompts.values():
            if len(answers) == 1:
                bad.left_out["a prompt has fewer than two answers"] += 1
            yield from compared(answers, self.settings.pairing, bad)

    def answers(self, row: Row) -> list[Answer]:
        prompt = row.prompt("prompt")
        about = (row.origin, row.optional_text("domain"), row.optional_text("language"))
        if "responses" not in row:
            score = row.number("score") if "score" in row else mean(row, "scores", row.items("scores"))
            return [Answer(prompt, row.text("response"), score, *about)]
        texts, scores = row.items("responses"), row.items("scores")
        if len(texts) != len(scores):
            raise row.error(f"{len(texts)} responses but {len(scores)} scores")
        answers = []
        for i, (text, score) in enumerate(zip(texts, scores, strict=True)):
            if not isinstance(text, str):
                raise row.error(f"'responses[{i}]' should be text")
            several = score if isinstance(score, list) else [score]
            row.encodable(f"responses[{i}]", text)
            answers.append(Answer(prompt, text, mean(row, f"scores[{i}]", several), *about))
        return answers


class AnswersInOneRow(Source):
    """A source whose rows each hold all answers to a prompt, so that nothing needs to be kept."""

    uses: ClassVar = frozenset({"strength", "pairing"})

    @abstractmethod
    def answers(self, row: Row) -> list[Answer]: ...

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        for answers in bad.parse(rows, self._several):
            for pair in compared(answers, self.settings.pairing, bad):
                if pair.chosen == pair.rejected:
                    bad.left_out["two answers to a prompt are the same text"] += 1
                else:
                    yield pair

    def _several(self, row: Row) -> list[Answer]:
        answers = self.answers(row)
        if len(answers) < 2:
            raise row.no_comparison("a prompt has fewer than two answers")
        return answers


def compared(answers: Sequence[Answer], pairing: PairRule, bad: BadRows) -> Iterator[Comparison]:
    """The pairs that the rule selects, with their score gaps."""
    if left_out := pairing.left_out(len(answers)):
        bad.left_out[f"pairs beyond {pairing.most:,} of a prompt, drawn at random"] += left_out
    for better, worse, gap in pairing.select([answer.score for answer in answers]):
        good = answers[better]
        yield Comparison(
            prompt=good.prompt,
            chosen=good.text,
            rejected=answers[worse].text,
            strength=0,
            source=good.origin,
            domain=good.domain,
            language=good.language,
            margin=gap,
        )


def mean(row: Row, where: str, scores: list[object]) -> float:
    if not scores:
        raise row.error(f"'{where}' is empty: a response needs at least one score")
    return sum(row.as_number(where, score) for score in scores) / len(scores)
