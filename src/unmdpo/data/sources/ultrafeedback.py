"""UltraFeedback as published: an instruction and several completions, each rated by GPT-4."""

from collections.abc import Mapping
from typing import ClassVar

from unmdpo.data.rows import Row
from unmdpo.data.sources.scored import Answer, AnswersInOneRow

SCORES = ("overall_score", "fine-grained_score")


class UltraFeedback(AnswersInOneRow):
    """Every pair of completions, by the difference of their overall scores (1–10), as its binarized forms take it."""

    shapes: ClassVar = (frozenset({"instruction", "completions"}),)
    strength: ClassVar = "thresholds on differences of `overall_score`"
    also: ClassVar = ("openbmb/UltraFeedback",)

    def answers(self, row: Row) -> list[Answer]:
        prompt, domain = row.prompt("instruction"), row.optional_text("source")
        answers = []
        for i, item in enumerate(row.items("completions")):
            if not isinstance(item, Mapping):
                raise row.error(f"'completions[{i}]' should be an object")
            completion = Row(item, row.origin)
            column = next((name for name in SCORES if name in completion), SCORES[0])
            answers.append(Answer(prompt, completion.text("response"), completion.number(column), row.origin, domain))
        return answers
