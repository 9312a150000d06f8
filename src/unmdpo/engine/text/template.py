"""A tokenizer's chat template, made to take any conversation and to write the same text on any day.

Templates differ in what they accept: some refuse or drop system messages, some insist on alternating turns that begin
with the user's. A conversation that a template does not take is adapted in the mildest way that loses no text.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from unmdpo.core.errors import UserError
from unmdpo.core.isolated import isolated
from unmdpo.data.identity import TOOLS, Message, Prompt

TODAY = datetime(2024, 7, 26)  # for templates that write the date: the paper's `date_string`
CLOCK = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
GAP = "\n\n"  # between texts that are joined in one turn
PROBE = "unmdpo"
ANOTHER = "set another one with model.template, or its arguments with model.chat_template"

FAILURES = (  # what a template's code may raise
    TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, MemoryError, RecursionError,
)  # fmt: skip
PATIENCE, MEMORY = 20, 1 << 30  # seconds and bytes for one word
ALLOWANCE, PER_CHARACTER = 1_000_000, 100  # a template writes no more around a conversation
MERGED, OPENED, FOLDED, LOST = "merged", "opened", "folded", "lost"
WAYS: tuple[tuple[str, ...], ...] = (  # from mild to strong
    (), (MERGED,), (MERGED, OPENED), (FOLDED,), (FOLDED, MERGED), (FOLDED, MERGED, OPENED),
)  # fmt: skip
ADAPTED = {
    FOLDED: "comparisons have a system message that the chat template does not take: it precedes the first user turn",
    MERGED: "comparisons have turns of one speaker in a row, which the chat template refuses: they are joined",
    OPENED: "comparisons begin with the assistant, which the chat template refuses: an empty user turn precedes it",
    LOST: "comparisons lose turns or change them in the chat template, in every form: is it the right one?",
}


Turn = dict[str, Any]  # a message as a dictionary
_FUNCTION = {"name": f"{PROBE}_f", "description": "?", "parameters": {"type": "object", "properties": {}}}
_CALL: dict[str, Any] = {"id": "unmdpo123", "type": "function"}  # Mistral's templates want nine characters
_CALL |= {"function": {"name": f"{PROBE}_f", "arguments": {f"{PROBE}_key": f"{PROBE}_value"}}}
CALLED = (
    (
        Message(TOOLS, json.dumps([{"type": "function", "function": _FUNCTION}])),
        Message("user", "?"),
        Message("assistant", "", json.dumps({"tool_calls": [_CALL]})),
        Message("tool", f"{PROBE}_result", json.dumps({"tool_call_id": _CALL["id"], "name": f"{PROBE}_f"})),
        Message("assistant", f"{PROBE}_end"),
    ),
    (f"{PROBE}_f", f"{PROBE}_key", f"{PROBE}_value", f"{PROBE}_result", f"{PROBE}_end"),
)


def needs_more(turns: Prompt) -> bool:
    """Whether turns say more than their text, or are not spoken by people."""
    return any(turn.more or turn.role in (TOOLS, "tool") for turn in turns)


class Frame(NamedTuple):
    """What a template writes around a response after the generation prompt."""

    before: str  # empty if the answered turn does not begin with the generation prompt
    after: str
    trims: bool  # whether white space around the response is dropped

    def around(self, response: str) -> str:
        return self.before + (response.strip() if self.trims else response) + self.after


class ChatTemplate:
    def __init__(self, tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any] | None = None) -> None:
        self.name = tokenizer.name_or_path or "the tokenizer"
        if getattr(tokenizer, "chat_template", None) is None:
            raise UserError(f"{self.name} has no chat template; use an instruction-tuned model, or set model.template")
        self.tokenizer = tokenizer
        self.arguments = dict(arguments or {})
        try:
            written = tokenizer.get_chat_template()
        except ValueError as error:
            raise UserError(f"{self.name}: {error}; choose one with model.template") from error
        self.text = CLOCK.sub(lambda call: json.dumps(TODAY.strftime(call[2])), written)
        self.writes_today = self.text != written and "date_string" not in self.arguments
        self._ways: dict[tuple[str, ...], tuple[str, ...]] = {}

    def messages(self, prompt: Prompt) -> list[Turn]:
        """The prompt's turns, as this template takes them; one of the role `tools` may come first."""
        return _adapt(prompt, self.way(prompt))

    @cached_property
    def writes_calls(self) -> bool:
        """Whether tools, calls of them and what they return are all in the text."""
        turns, words = CALLED
        try:
            text = self._render([turn.to_dict() for turn in turns], prefix=False)
        except FAILURES:
            return False
        return all(word in text for word in words)

    def way(self, prompt: Prompt) -> tuple[str, ...]:
        """How such a prompt is adapted: one with tools is not."""
        if needs_more(prompt):
            return ()
        roles = tuple(message.role for message in prompt)
        if roles not in self._ways:
            self._ways[roles] = self._way(roles)
        return self._ways[roles]

    def render(self, messages: Sequence[Turn], *, prefix: bool) -> str:
        """The conversation as text; `prefix` adds the start of the assistant's turn."""
        try:
            return self._render(messages, prefix=prefix)
        except FAILURES as error:
            reason = str(error).strip() or type(error).__name__
            raise UserError(f"the chat template of {self.name} fails: {reason}; {ANOTHER}") from error

    def prove(self) -> None:
        """Renders a word in a process of its own: a template that never ends is better met here than in training."""
        arguments = {**self.tokenizer.special_tokens_map, **self.arguments}
        who = f"the chat template of {self.name}"
        problem = isolated(
            "unmdpo.engine.text.probe:problem", self.text, PROBE, arguments, ALLOWANCE,
            who=who, seconds=PATIENCE, memory=MEMORY, advice=ANOTHER,
        )  # fmt: skip
        if problem:
            raise UserError(f"{who} {problem}; {ANOTHER}")

    @cached_property
    def frame(self) -> Frame:
        asked = [{"role": "user", "content": "?"}]
        start = self.render(asked, prefix=True)
        whole, spaced = (
            self.render([*asked, {"role": "assistant", "content": text}], prefix=False)
            for text in (PROBE, f" {PROBE} ")
        )
        head, found, after = whole.rpartition(PROBE)
        if not found:  # the template changes what is said
            return Frame("", "", trims=False)
        return Frame(head[len(start) :] if head.startswith(start) else "", after, trims=whole == spaced)

    def _render(self, messages: Sequence[Turn], *, prefix: bool) -> str:
        listed = messages[:1] if messages and messages[0]["role"] == TOOLS else []
        text = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages[len(listed) :]],
            tools=json.loads(listed[0]["content"]) if listed else None,
            chat_template=self.text,
            tokenize=False,
            add_generation_prompt=prefix,
            **self.arguments,
        )
        assert isinstance(text, str)
        given = sum(len(str(part)) for message in messages for part in message.values())
        if len(text) > ALLOWANCE + PER_CHARACTER * given:
            raise ValueError(f"it writes {len(text):,} characters for a conversation of {given:,}")
        return text

    def _way(self, roles: tuple[str, ...]) -> tuple[str, ...]:
        """The mildest way that the template takes and that loses no turn; if there is none, as it is."""
        probe = tuple(Message(role, f"{PROBE}{place}.") for place, role in enumerate(roles))
        taken = False
        for way in WAYS:
            adapted = _adapt(probe, way)
            try:
                text = self._render(adapted, prefix=True)
            except FAILURES:
                continue
            taken = taken or way == ()
            if all(message.content in text for message in probe):
                return tuple(step for step in way if _adapt(probe, tuple(s for s in way if s != step)) != adapted)
        return (LOST,) if taken else ()


def _adapt(prompt: Prompt, way: Sequence[str]) -> list[Turn]:
    turns = [message.to_dict() for message in prompt]
    if FOLDED in way:
        turns = _folded(turns)
    if MERGED in way:
        turns = _merged(turns)
    if OPENED in way:
        first = next((place for place, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
        if turns[first:] and turns[first]["role"] == "assistant":
            turns.insert(first, {"role": "user", "content": ""})
    return turns


def _folded(turns: list[Turn]) -> list[Turn]:
    """System messages become the beginning of the next user turn."""
    waiting: list[str] = []
    folded = []
    for turn in turns:
        if turn["role"] == "system":
            waiting.append(turn["content"])
        elif turn["role"] == "user" and waiting:
            folded.append({"role": "user", "content": GAP.join([*waiting, turn["content"]])})
            waiting = []
        else:
            folded.append(turn)
    return folded


def _merged(turns: list[Turn]) -> list[Turn]:
    merged: list[Turn] = []
    for turn in turns:
        if merged and merged[-1]["role"] == turn["role"]:
            merged[-1] = {"role": turn["role"], "content": merged[-1]["content"] + GAP + turn["content"]}
        else:
            merged.append(turn)
    return merged
