"""Ranked answers: a prompt and several answers, each with its rank; a smaller rank is better."""

from collections.abc import Mapping
from typing import ClassVar

from unmdpo.data.rows import Row
from unmdpo.data.sources.hh import turns_of
from unmdpo.data.sources.scored import Answer, AnswersInOneRow


class Ranked(AnswersInOneRow):
    """Nectar's `answers`, and NeMo-RL's `completions` of a `context`.

    A rank says nothing about size, so the levels are ours: neighbours, two or three ranks apart, four or more; with
    seven answers, these are about thirds of all pairs.
    """

    shapes: ClassVar = (frozenset({"prompt", "answers"}), frozenset({"context", "completions"}))
    thresholds: ClassVar = (2.0, 4.0)
    strength: ClassVar = "the difference of ranks: 1, 2–3, 4 or more"
    also: ClassVar = ("berkeley-nest/Nectar",)

    @classmethod
    def fits(cls, row: Row) -> bool:
        items = row.values.get("answers", row.values.get("completions"))
        ranked = isinstance(items, list) and all(isinstance(item, Mapping) and "rank" in item for item in items)
        return super().fits(row) and ranked

    def answers(self, row: Row) -> list[Answer]:
        if "answers" in row.values:
            prompt, column = turns_of(row, "prompt"), "answers"
        else:
            prompt, column = row.prompt("context"), "completions"
        answers = []
        for i, item in enumerate(row.items(column)):
            if not isinstance(item, Mapping):
                raise row.error(f"'{column}[{i}]' should be an object")
            ranked = Row(item, row.origin)
            answers.append(Answer(prompt, _text(ranked), -ranked.number("rank"), row.origin))
        return answers


def _text(item: Row) -> str:
    if "answer" in item.values:
        return item.text("answer")
    messages = item.conversation("completion")
    if len(messages) != 1:
        raise item.error(f"'completion' should be a single message, not {len(messages)}")
    return messages[0].content
