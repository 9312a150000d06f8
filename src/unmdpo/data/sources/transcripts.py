"""Transcripts in one text with `Human:` and `Assistant:` turns, as in Anthropic's helpful-and-harmless data."""

import re

from unmdpo.data.identity import Message, Prompt
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Source, question, shape
from unmdpo.data.sources.preference import pairs

TURN = re.compile(r"(?:\A|\r?\n\r?\n)(Human|Assistant):[ ]?")
ROLES = {"Human": "user", "Assistant": "assistant"}


def is_transcript(text: str) -> bool:
    return text.lstrip().startswith("Human:") and "\n\nAssistant:" in text.replace("\r\n", "\n")


def transcript(text: str) -> Prompt:
    """The turns of a transcript, without the white space between them; an empty last turn is only its header. What
    comes before the first turn is a system message."""
    preface, *marked = TURN.split("\n\n" + text.strip())
    turns = [Message("system", preface.strip())] if preface.strip() else []
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
        return question(row, column, row.text(column))
    turns = transcript(row.text(column))
    if turns and turns[-1].role == "assistant" and not turns[-1].content:
        turns = turns[:-1]
    return row.check_prompt(column, turns)


def _has_transcripts(row: Row) -> bool:
    texts = [row.values.get(column) for column in ("chosen", "rejected")]
    prompt = row.values.get("prompt")
    whole = all(isinstance(text, str) and is_transcript(text) for text in texts)
    return whole or (isinstance(prompt, str) and is_transcript(prompt) and all(isinstance(t, str) for t in texts))


def _texts(row: Row) -> tuple[Prompt, str, str]:
    """The prompt is what both transcripts say before their last answers, or a transcript of its own; turns of one
    speaker in a row are one."""
    if "prompt" in row and not is_transcript(row.text("chosen")):
        return turns_of(row, "prompt"), row.text("chosen").strip(), row.text("rejected").strip()
    chosen, rejected = (transcript(row.text(column)) for column in ("chosen", "rejected"))
    for turns in (chosen, rejected):
        if not turns or turns[-1].role != "assistant":
            raise row.no_comparison("a transcript does not end with the assistant's turn")
    if chosen[:-1] != rejected[:-1]:
        raise row.no_comparison("the two transcripts differ before their last answers")
    return row.check_prompt("chosen", chosen[:-1]), chosen[-1].content, rejected[-1].content


TRANSCRIPTS = Source(
    (shape("chosen", "rejected"),),
    pairs(_texts),
    "as in `preference`; the original has none, so 1",
    uses=frozenset({"strength"}),
    labels="fixed pairs",
    finds_strength=True,
    accepts=_has_transcripts,
    also=("Anthropic/hh-rlhf",),
)
