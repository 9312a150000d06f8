"""Summaries from feedback: `choice` says which is better, `extra.confidence` (1–9) how sure the labeller was.

The scale is written from "surely the first" to "surely the second" with 5 in the middle, and then the strength is the
distance from 5. Copies in which it does not follow `choice` can only mean plain confidence.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.identity import Prompt
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Source, Texts, question, shape

MIDDLE, SUREST = 5, 9
AGREEING = 0.9  # share of rows that settles how confidence is meant


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
    made = Texts(prompt, texts[0], texts[1], domain).compare(row, 1 if second else -1)
    return _Choice(made, second, confidence)


def _post(row: Row, info: Row) -> tuple[Prompt, str]:
    """The request in the form that the authors gave to their models, and where the text comes from."""
    if "post" not in info:
        if "article" not in info:
            raise row.error("'info' has neither a 'post' nor an 'article'")
        return question(row, "info.article", f"Article: {info.text('article')}", "TL;DR:"), "cnndm"
    parts = [
        f"SUBREDDIT: r/{info.optional_text('subreddit')}",
        f"TITLE: {info.optional_text('title')}",
        f"POST: {info.text('post')}",
        "TL;DR:",
    ]
    return question(row, "info.post", *parts), "tldr"


def _read(source: Source, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
    """All rows wait until it is known how confidence is meant."""
    choices = list(bad.parse(rows, _choice))
    graded = [choice for choice in choices if choice.confidence not in (None, MIDDLE)]
    following = sum(((choice.confidence or 0) > MIDDLE) == choice.second for choice in graded)
    from_middle = following >= AGREEING * len(graded)
    for choice in choices:
        yield replace(choice.comparison, margin=choice.margin(from_middle))


SUMMARIES = Source(
    (shape("info", "summaries", "choice"),),
    _read,
    "how far `extra.confidence` is from the middle: 1, 2, 3 or more; 1 where there is none",
    uses=frozenset({"strength"}),
    thresholds=(2.0, 3.0),
    split_column="split",
    also=("openai/summarize_from_feedback",),
)
