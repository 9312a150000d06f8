"""Transcripts in one text with `Human:` and `Assistant:` turns, as in Anthropic's helpful-and-harmless data."""

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.identity import Message, Prompt
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Source, Unlabelled, asked

TURN = re.compile(r"(?:\A|\n\n)(Human|Assistant):[ ]?")
ROLES = {"Human": "user", "Assistant": "assistant"}


class HelpfulHarmless(Source):
    """The prompt is what both transcripts say before their last answers, or a transcript of its own; turns of one
    speaker in a row are one."""

    shapes: ClassVar = (frozenset({"chosen", "rejected"}),)
    labels: ClassVar = "no strengths"
    strength: ClassVar = "1 for all: the better one is known, but not by how much"
    also: ClassVar = ("Anthropic/hh-rlhf",)

    @classmethod
    def fits(cls, row: Row) -> bool:
        texts = [row.values.get(column) for column in ("chosen", "rejected")]
        prompt = row.values.get("prompt")
        whole = prompt is None and all(isinstance(text, str) and is_transcript(text) for text in texts)
        return whole or (isinstance(prompt, str) and is_transcript(prompt) and all(isinstance(t, str) for t in texts))

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        return bad.parse(rows, self._comparison)

    def _comparison(self, row: Row) -> Comparison:
        if "prompt" in row:
            answers = (row.text(column).strip() for column in ("chosen", "rejected"))
            return Unlabelled(turns_of(row, "prompt"), *answers).compare(row, -1)
        chosen, rejected = (transcript(row.text(column)) for column in ("chosen", "rejected"))
        for turns in (chosen, rejected):
            if not turns or turns[-1].role != "assistant":
                raise row.no_comparison("a transcript does not end with the assistant's turn")
        if chosen[:-1] != rejected[:-1]:
            raise row.no_comparison("the two transcripts differ before their last answers")
        prompt = row.check_prompt("chosen", chosen[:-1])
        return Unlabelled(prompt, chosen[-1].content, rejected[-1].content).compare(row, -1)


def is_transcript(text: str) -> bool:
    return text.lstrip().startswith("Human:") and "\n\nAssistant:" in text


def transcript(text: str) -> Prompt:
    """The turns of a transcript, without the white space between them; an empty last turn is only its header."""
    _, *marked = TURN.split("\n\n" + text.strip())
    turns: list[Message] = []
    for speaker, content in zip(marked[::2], marked[1::2], strict=True):
        role, said = ROLES[speaker], content.strip()
        if turns and turns[-1].role == role:
            turns[-1] = Message(role, f"{turns[-1].content}\n\n{said}")
        else:
            turns.append(Message(role, said))
    return tuple(turns)


def turns_of(row: Row, column: str) -> Prompt:
    """A prompt that is a transcript up to the assistant's header, or else plain."""
    text = row.value(column)
    if not isinstance(text, str):
        return row.prompt(column)
    if not is_transcript(text):
        return row.check_prompt(column, asked(row.text(column)))
    turns = transcript(row.text(column))
    if turns and turns[-1].role == "assistant" and not turns[-1].content:
        turns = turns[:-1]
    return row.check_prompt(column, turns)
