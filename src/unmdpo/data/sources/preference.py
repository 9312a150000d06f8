"""TRL-style preference data: explicit prompts, conversations, or a prompt that both answers repeat."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from itertools import takewhile
from typing import ClassVar

from unmdpo.data.comparison import Comparison
from unmdpo.data.identity import Message, Prompt
from unmdpo.data.rows import BadRows, Row
from unmdpo.data.sources.base import Source
from unmdpo.data.strength import StrengthRule, are_strengths, grade, grade_columns
from unmdpo.errors import UnmdpoWarning

ANSWERS = ("chosen", "rejected")
PROMPT_LIKE = ("instruction", "question", "query", "input")


class Preference(Source):
    shapes: ClassVar = (frozenset({"chosen", "rejected"}),)
    uses: ClassVar = frozenset({"strength"})
    labels: ClassVar = "fixed pairs"

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        rule = self.settings.strength
        grader = _Grader(rule)
        graded = []
        for comparison, value in bad.parse(rows, grader.read):
            if grader.by_margin:
                graded.append((comparison, value))
            else:
                yield replace(comparison, strength=int(value))
        strengths = rule.cut([value for _, value in graded])
        for (comparison, _), strength in zip(graded, strengths, strict=True):
            yield replace(comparison, strength=strength)


class _Grader:
    """Reads rows; all must have the strength columns of the first readable row, since a file has one kind."""

    def __init__(self, rule: StrengthRule) -> None:
        self.rule = rule
        self.columns: tuple[str, ...] | None = None

    @property
    def by_margin(self) -> bool:
        return bool(self.columns) and not are_strengths(self.columns or (), self.rule)

    def read(self, row: Row) -> tuple[Comparison, float]:
        comparison = _comparison(row, self.rule.levels)
        columns = grade_columns(row, self.rule)
        if self.columns is None:
            value = grade(row, columns, self.rule) if columns else 1.0
            self._settle(columns, row)
            return comparison, value
        if columns != self.columns:
            raise row.error(
                f"gives its strength in {_names(columns)}, but the rows before it in {_names(self.columns)}"
            )
        return comparison, grade(row, columns, self.rule) if columns else 1.0

    def _settle(self, columns: tuple[str, ...], row: Row) -> None:
        self.columns = columns
        if not columns:
            warnings.warn(
                f"{row.origin.file}: no strengths, margins or scores were found; every strength is 1, "
                "so margins carry no information",
                UnmdpoWarning,
                stacklevel=2,
            )


def _names(columns: tuple[str, ...]) -> str:
    return " and ".join(f"'{column}'" for column in columns) or "no column"


def _comparison(row: Row, levels: int) -> Comparison:
    prompt, chosen, rejected = _explicit(row) if "prompt" in row.values else _implicit(row)
    return Comparison(
        prompt=prompt,
        chosen=chosen,
        rejected=rejected,
        strength=0,
        source=row.origin,
        domain=row.optional_text("domain"),
        language=row.optional_text("language"),
        votes=_votes(row, levels),
    )


def _votes(row: Row, levels: int) -> tuple[int, ...]:
    if "votes" not in row:
        return ()
    items = row.items("votes")
    return tuple(row.as_integer(f"votes[{i}]", vote, -levels, levels) for i, vote in enumerate(items))


def _explicit(row: Row) -> tuple[Prompt, str, str]:
    """The prompt has its own column; conversations next to it may hold one assistant turn, or repeat the prompt."""
    prompt = row.prompt("prompt")
    if not any(isinstance(row.value(name), list) and len(row.value(name)) > 1 for name in ANSWERS):
        return prompt, _answer(row, "chosen"), _answer(row, "rejected")
    repeated, chosen, rejected = _implicit(row)
    if prompt not in (repeated, repeated[-1:]):
        raise row.error("'chosen' and 'rejected' begin with turns that differ from 'prompt'")
    return repeated, chosen, rejected


def _answer(row: Row, column: str) -> str:
    """A response next to its prompt: text, or a single assistant message."""
    if isinstance(row.value(column), str):
        return row.text(column)
    messages = row.conversation(column)
    if len(messages) != 1 or messages[0].role != "assistant":
        raise row.error(f"'{column}' should be a single assistant message when there is a 'prompt'")
    return messages[0].content


def _implicit(row: Row) -> tuple[Prompt, str, str]:
    """The prompt is what both columns begin with; each ends in its own response."""
    texts = [isinstance(row.value(column), str) for column in ANSWERS]
    if all(texts):
        return _implicit_text(row)
    if any(texts):
        raise row.error("'chosen' and 'rejected' should both be text or both be conversations")
    chosen, rejected = row.conversation("chosen"), row.conversation("rejected")
    for column, messages in (("chosen", chosen), ("rejected", rejected)):
        if not messages or messages[-1].role != "assistant":
            raise row.error(f"'{column}' should end with an assistant turn")
    if chosen[:-1] != rejected[:-1]:
        raise row.error("'chosen' and 'rejected' should be the same up to the last turn")
    prompt = row.check_prompt("chosen", chosen[:-1])
    return prompt, chosen[-1].content, rejected[-1].content


def _implicit_text(row: Row) -> tuple[Prompt, str, str]:
    likely = get_close_matches("prompt", row.values, n=1, cutoff=0.7)
    likely += [column for column in PROMPT_LIKE if column in row.values]
    if likely:
        raise row.error(f"there is no column 'prompt', but there is '{likely[0]}'; rename it if it holds the prompt")
    chosen, rejected = row.text("chosen"), row.text("rejected")
    same = takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False))
    common = "".join(character for character, _ in same)
    prompt = common[: max(common.rfind(" "), common.rfind("\n")) + 1].rstrip()  # whole words only
    if not prompt:
        raise row.error("'chosen' and 'rejected' share no prefix, and there is no column 'prompt'")
    return (Message("user", prompt),), chosen[len(prompt) :], rejected[len(prompt) :]
