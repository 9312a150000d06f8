"""Pairs that say which response is better: TRL's shapes, and those of others with the same columns by other names."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from itertools import takewhile
from typing import ClassVar

from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.identity import Message, Prompt
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Source, asked
from unmdpo.data.strength import StrengthRule, are_strengths, grade, grade_columns
from unmdpo.errors import UnmdpoWarning

ANSWERS = (("chosen", "rejected"), ("chosen_response", "rejected_response"), ("response_j", "response_k"))
PROMPTS = ("prompt", "instruction", "question", "query", "input", "conversations", "trajectory", "messages", "context")


class Preference(Source):
    shapes: ClassVar = tuple(frozenset(answers) for answers in ANSWERS)
    uses: ClassVar = frozenset({"strength"})
    labels: ClassVar = "fixed pairs"
    strength: ClassVar = "a `strength` column, a `margin`, or the difference of two scores; else 1"
    also: ClassVar = (
        "HuggingFaceH4/ultrafeedback_binarized",
        "argilla/ultrafeedback-binarized-preferences-cleaned",
        "Skywork/Skywork-Reward-Preference-80K-v0.2",
        "allenai/llama-3.1-tulu-3-8b-preference-mixture",
        "allenai/olmo-2-1124-7b-preference-mix",
        "Intel/orca_dpo_pairs",
        "argilla/distilabel-intel-orca-dpo-pairs",
        "argilla/dpo-mix-7k",
        "allenai/reward-bench",
        "openbmb/UltraInteract_pair",
        "lvwerra/stack-exchange-paired",
    )

    def comparisons(self, rows: Iterable[Row], bad: BadRows) -> Iterator[Comparison]:
        return bad.parse(rows, _Grader(self.rule).read)


class _Grader:
    """Reads rows; all must have the strength columns of the first readable row, since a file has one kind."""

    def __init__(self, rule: StrengthRule) -> None:
        self.rule = rule
        self.columns: tuple[str, ...] | None = None

    def read(self, row: Row) -> Comparison:
        comparison = _comparison(row, self.rule.levels)
        columns = grade_columns(row, self.rule)
        if self.columns is not None and columns != self.columns:
            raise row.error(
                f"gives its strength in {_names(columns)}, but the rows before it in {_names(self.columns)}"
            )
        value = grade(row, columns, self.rule) if columns else 1.0
        if self.columns is None:
            self._settle(columns, row)
        if columns and not are_strengths(columns, self.rule):
            return replace(comparison, margin=value)
        return replace(comparison, strength=int(value))

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
    prompt, chosen, rejected = _texts(row)
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


def _texts(row: Row) -> tuple[Prompt, str, str]:
    """The prompt and both responses. Whole conversations hold the prompt themselves; single answers stand next to it;
    plain texts without a prompt begin with it."""
    names = next((names for names in ANSWERS if row.values.keys() >= set(names)), ANSWERS[0])
    if any(isinstance(row.value(name), list) and len(row.value(name)) > 1 for name in names):
        found = _whole(row, names)
        _check_repeated(row, found[0])
        return found
    column = next((name for name in PROMPTS if name in row), None)
    if column is None and "prompt" not in row.values:
        return _whole(row, names)
    return _asked(row, column or "prompt"), _answer(row, names[0]), _answer(row, names[1])


def _asked(row: Row, column: str) -> Prompt:
    """The prompt in its own column, perhaps with Alpaca's `input` or a `system` message beside it."""
    prompt = row.conversation(column)
    if column == "instruction" and isinstance(row.value(column), str) and row.optional_text("input"):
        prompt = asked(f"{row.text(column)}\n{row.text('input')}")
    system = row.optional_text("system")
    if system.strip() and prompt and prompt[0].role != "system":
        prompt = (Message("system", system), *prompt)
    return row.check_prompt(column, prompt)


def _answer(row: Row, column: str) -> str:
    """A response next to its prompt: text, or a single assistant message."""
    value = row.value(column)
    if isinstance(value, str):
        return row.text(column)
    messages = (row.message(column, value),) if isinstance(value, Mapping) else row.conversation(column)
    if len(messages) != 1 or messages[0].role != "assistant":
        raise row.error(f"'{column}' should be a single assistant message when there is a 'prompt'")
    return messages[0].content


def _whole(row: Row, names: tuple[str, str]) -> tuple[Prompt, str, str]:
    """The prompt is what both columns begin with; each ends in its own response."""
    first, second = names
    texts = [isinstance(row.value(column), str) for column in names]
    if all(texts):
        return _whole_text(row, names)
    if any(texts):
        raise row.error(f"'{first}' and '{second}' should both be text or both be conversations")
    chosen, rejected = row.conversation(first), row.conversation(second)
    for column, messages in ((first, chosen), (second, rejected)):
        if not messages or messages[-1].role != "assistant":
            raise row.error(f"'{column}' should end with an assistant turn")
    if chosen[:-1] != rejected[:-1]:
        raise row.error(f"'{first}' and '{second}' should be the same up to the last turn")
    prompt = row.check_prompt(first, chosen[:-1])
    return prompt, chosen[-1].content, rejected[-1].content


def _check_repeated(row: Row, prompt: Prompt) -> None:
    """A `prompt` beside whole conversations says the same: all of it, its last turn, or as text one of its turns."""
    if "prompt" not in row:
        return
    beside = row.prompt("prompt")
    if isinstance(row.value("prompt"), str):
        said = beside[0].content.strip()
        same = any(turn.content.strip() == said for turn in prompt)
        same = same or all(turn.content.strip() in said for turn in prompt)
    else:
        same = beside in (prompt, prompt[-1:])
    if not same:
        raise row.error("'chosen' and 'rejected' begin with turns that differ from 'prompt'")


def _whole_text(row: Row, names: tuple[str, str]) -> tuple[Prompt, str, str]:
    likely = get_close_matches("prompt", row.values, n=1, cutoff=0.7)
    if likely:
        raise row.error(f"there is no column 'prompt', but there is '{likely[0]}'; rename it if it holds the prompt")
    chosen, rejected = (row.text(column) for column in names)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False))
    common = "".join(character for character, _ in same)
    prompt = common[: max(common.rfind(" "), common.rfind("\n")) + 1].rstrip()  # whole words only
    if not prompt:
        raise row.error(f"'{names[0]}' and '{names[1]}' share no prefix, and there is no column 'prompt'")
    return asked(prompt), chosen[len(prompt) :], rejected[len(prompt) :]
