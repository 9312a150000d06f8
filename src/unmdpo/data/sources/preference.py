"""TRL-style preference data: explicit prompts, conversations, or a prompt both answers repeat."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, takewhile
from typing import ClassVar

from unmdpo.data.comparison import Comparison
from unmdpo.data.identity import Message, Prompt
from unmdpo.data.rows import BadRows, Row
from unmdpo.data.sources.base import Source
from unmdpo.data.strength import margin, margin_columns
from unmdpo.errors import UnmdpoWarning


class Preference(Source):
    shapes: ClassVar = (frozenset({"chosen", "rejected"}),)

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        rows = iter(rows)
        first = next(rows, None)
        if first is None:
            return
        levels = self.settings.strength.levels
        grade, by_margin = self._grading(first)
        graded = bad.parse(chain([first], rows), lambda row: (_comparison(row, levels), grade(row)))
        if not by_margin:
            for comparison, strength in graded:
                yield replace(comparison, strength=int(strength))
            return
        kept = list(graded)
        strengths = self.settings.strength.cut([margin for _, margin in kept])
        for (comparison, _), strength in zip(kept, strengths, strict=True):
            yield replace(comparison, strength=strength)

    def _grading(self, row: Row) -> tuple[Callable[[Row], float], bool]:
        """How this file tells strength (decided once, by its first row), and if by margins."""
        rule = self.settings.strength
        if (column := rule.strength_column(row)) is not None:
            return (lambda row: row.integer(column, 0, rule.levels)), False
        if columns := margin_columns(row):
            return (lambda row: margin(row, columns)), True
        warnings.warn(
            f"{row.origin.file}: no strengths, margins or scores; every strength is 1, "
            "so margins carry no information",
            UnmdpoWarning,
            stacklevel=2,
        )
        return (lambda row: 1), False


def _comparison(row: Row, levels: int) -> Comparison:
    if "prompt" in row:
        prompt = row.prompt("prompt")
        chosen, rejected = _answer(row, "chosen"), _answer(row, "rejected")
    else:
        prompt, chosen, rejected = _implicit(row)
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


def _answer(row: Row, column: str) -> str:
    """A response that stands beside its prompt: text, or a single assistant message."""
    if isinstance(row.value(column), str):
        return row.text(column)
    messages = row.conversation(column)
    if len(messages) != 1 or messages[0].role != "assistant":
        raise row.error(f"'{column}' should be one assistant message beside 'prompt'")
    return messages[0].content


def _implicit(row: Row) -> tuple[Prompt, str, str]:
    """The prompt is what both columns begin with; each ends in its own response."""
    texts = [isinstance(row.value(column), str) for column in ("chosen", "rejected")]
    if all(texts):
        return _implicit_text(row)
    if any(texts):
        raise row.error("'chosen' and 'rejected' should both be text or both be conversations")
    chosen, rejected = row.conversation("chosen"), row.conversation("rejected")
    for column, messages in (("chosen", chosen), ("rejected", rejected)):
        if not messages or messages[-1].role != "assistant":
            raise row.error(f"'{column}' should end in an assistant turn")
    if chosen[:-1] != rejected[:-1]:
        raise row.error("'chosen' and 'rejected' do not share the turns before the last one")
    prompt = row.check_prompt("chosen", chosen[:-1])
    return prompt, chosen[-1].content, rejected[-1].content


def _implicit_text(row: Row) -> tuple[Prompt, str, str]:
    chosen, rejected = row.text("chosen"), row.text("rejected")
    same = takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False))
    common = "".join(character for character, _ in same)
    prompt = common[: max(common.rfind(" "), common.rfind("\n")) + 1].rstrip()  # whole words only
    if not prompt:
        raise row.error("'chosen' and 'rejected' share no prefix, and there is no 'prompt'")
    return (Message("user", prompt),), chosen[len(prompt) :], rejected[len(prompt) :]
