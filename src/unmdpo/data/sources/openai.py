"""OpenAI's comparisons: summaries with a confidence, and WebGPT's answers with a graded score."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, NamedTuple

from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.identity import Prompt
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Source, Unlabelled, asked

MIDDLE, SUREST = 5, 9
AGREEING = 0.9  # share of rows that settles how confidence is meant


class Summaries(Source):
    """Summaries from feedback: `choice` says which is better, `extra.confidence` (1–9) how sure the labeller was.

    The scale is written from "surely the first" to "surely the second" with 5 in the middle, and then the strength is
    the distance from 5. Copies in which it does not follow `choice` can only mean plain confidence.
    """

    shapes: ClassVar = (frozenset({"info", "summaries", "choice"}),)
    uses: ClassVar = frozenset({"strength"})
    strength: ClassVar = "how far `extra.confidence` is from the middle: 1, 2, 3 or more; 1 where there is none"
    also: ClassVar = ("openai/summarize_from_feedback",)
    split_column: ClassVar = "split"
    thresholds: ClassVar = (2.0, 3.0)

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        """All rows wait until it is known how confidence is meant."""
        choices = list(bad.parse(rows, _choice))
        graded = [choice for choice in choices if choice.confidence not in (None, MIDDLE)]
        following = sum(((choice.confidence or 0) > MIDDLE) == choice.second for choice in graded)
        from_middle = following >= AGREEING * len(graded)
        for choice in choices:
            yield replace(choice.comparison, margin=choice.margin(from_middle))


class _Choice(NamedTuple):
    comparison: Comparison
    second: bool
    confidence: int | None

    def margin(self, from_middle: bool) -> float:
        """0 to 4; at least 1 where the confidence cannot mean a tie."""
        if self.confidence is None:
            return 1.0
        return abs(self.confidence - MIDDLE) if from_middle else max(1.0, (self.confidence - 1) / 2)


def _choice(row: Row) -> _Choice:
    info, summaries = row.value("info"), row.items("summaries")
    if not isinstance(info, Mapping) or len(summaries) != 2:
        raise row.error("'info' should be an object, and 'summaries' a list of two")
    texts = []
    for i, summary in enumerate(summaries):
        if not isinstance(summary, Mapping):
            raise row.error(f"'summaries[{i}]' should be an object")
        texts.append(Row(summary, row.origin).text("text"))
    prompt, domain = _post(row, Row(info, row.origin))
    second = row.integer("choice", 0, 1) == 1
    extra = row.values.get("extra")
    given = extra.get("confidence") if isinstance(extra, Mapping) else None
    confidence = None if given is None else row.as_integer("extra.confidence", given, 1, SUREST)
    made = Unlabelled(prompt, texts[0], texts[1], domain).compare(row, 1 if second else -1)
    return _Choice(made, second, confidence)


def _post(row: Row, info: Row) -> tuple[Prompt, str]:
    """The request in the form that the authors gave to their models, and where the text comes from."""
    if "post" not in info:
        if "article" not in info:
            raise row.error("'info' has neither a 'post' nor an 'article'")
        return row.check_prompt("info.article", asked(f"Article: {info.text('article')}\n\nTL;DR:")), "cnndm"
    parts = [
        f"SUBREDDIT: r/{info.optional_text('subreddit')}",
        f"TITLE: {info.optional_text('title')}",
        f"POST: {info.text('post')}",
        "TL;DR:",
    ]
    return row.check_prompt("info.post", asked("\n\n".join(parts))), "tldr"


class WebGPT(Source):
    """Two answers to a question; `score_0` (−1…1, the opposite of `score_1`) is how much better the first is."""

    shapes: ClassVar = (frozenset({"question", "answer_0", "answer_1", "score_0"}),)
    uses: ClassVar = frozenset({"strength"})
    thresholds: ClassVar = (0.5, 1.0)
    strength: ClassVar = "|`score_0`|: below 0.5, below 1, 1"
    also: ClassVar = ("openai/webgpt_comparisons",)

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        return bad.parse(rows, self._comparison)

    def _comparison(self, row: Row) -> Comparison:
        question, domain = row.value("question"), ""
        if isinstance(question, Mapping):
            domain = Row(question, row.origin).optional_text("dataset")
            question = question.get("full_text")
        if not isinstance(question, str):
            raise row.error("'question' should be text, or an object with 'full_text'")
        prompt = row.check_prompt("question", asked(row.encodable("question", question)))
        score = row.number("score_0")
        if abs(score) > 1:
            raise row.error(f"'score_0' should be from -1 to 1, not {score:g}")
        texts = Unlabelled(prompt, row.text("answer_0"), row.text("answer_1"), domain)
        return texts.compare(row, -score, margin=abs(score))
