"""Scored responses: several answers to a prompt, each with one or more scores.

Two shapes: a row per response (`prompt`, `response`, `score` or `scores`), or a row per prompt (`prompt`, `responses`,
`scores`). A response's score is the mean of its scores; `PairRule` says which responses are compared, `StrengthRule`
how strong a score gap is.
"""

from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple

from unmdpo.data.comparison import Comparison, Origin
from unmdpo.data.identity import Prompt, prompt_hash
from unmdpo.data.rows import BadRows, Row
from unmdpo.data.sources.base import Source


class Answer(NamedTuple):
    prompt: Prompt
    text: str
    score: float
    origin: Origin
    domain: str
    language: str


class Scored(Source):
    shapes: ClassVar = (
        frozenset({"prompt", "response", "score"}),
        frozenset({"prompt", "response", "scores"}),
        frozenset({"prompt", "responses", "scores"}),
    )
    uses: ClassVar = frozenset({"strength", "pairing"})

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        prompts: dict[str, list[Answer]] = {}
        for answers in bad.parse(rows, _answers):
            for answer in answers:
                prompts.setdefault(prompt_hash(answer.prompt), []).append(answer)
        selected = [
            (answers[better], answers[worse], gap)
            for answers in prompts.values()
            for better, worse, gap in self.settings.pairing.select([a.score for a in answers])
        ]
        levels = self.settings.strength.cut([gap for _, _, gap in selected])
        for (better, worse, _), level in zip(selected, levels, strict=True):
            yield Comparison(
                prompt=better.prompt,
                chosen=better.text,
                rejected=worse.text,
                strength=level,
                source=better.origin,
                domain=better.domain,
                language=better.language,
            )


def _answers(row: Row) -> list[Answer]:
    prompt = row.prompt("prompt")
    about = (row.origin, row.optional_text("domain"), row.optional_text("language"))
    if "responses" not in row:
        score = row.number("score") if "score" in row else _mean(row, "scores", row.items("scores"))
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
        answers.append(Answer(prompt, text, _mean(row, f"scores[{i}]", several), *about))
    return answers


def _mean(row: Row, where: str, scores: list[object]) -> float:
    if not scores:
        raise row.error(f"'{where}' is empty: a response needs at least one score")
    return sum(row.as_number(where, score) for score in scores) / len(scores)
