"""HelpSteer2-Preference: one file for both splits, with turns marked inside a single prompt string."""

import re
from typing import ClassVar

from unmdpo.data.identity import Message, Prompt
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import AnnotatedSource, HubData, Unlabelled
from unmdpo.data.sources.helpsteer3 import MAX_STRENGTH, annotator_scores

# All votes come before the three that formed the label, because those were selected for their agreement.
VOTES = ("all_preferences_unprocessed", "three_most_similar_preferences")
NEITHER = -100  # an annotator found neither response valid
TURN = re.compile(r"<extra_id_1>(User|Assistant)\n")


class HelpSteer2(AnnotatedSource):
    shapes: ClassVar = (frozenset({"prompt", "response_1", "response_2", "preference_strength"}),)
    label_columns: ClassVar = ("preference_strength", *VOTES)
    hub: ClassVar = HubData(
        "nvidia/HelpSteer2", data_dir="preference", pairs=6_766, prompts=6_765, validation_rows=448
    )
    split_column: ClassVar = "split"
    strength: ClassVar = "|`preference_strength`|, 1–3"

    def unlabelled(self, row: Row) -> Unlabelled:
        prompt = row.check_prompt("prompt", marked_turns(row, row.text("prompt")))
        return Unlabelled(prompt=prompt, first=row.text("response_1"), second=row.text("response_2"))

    def label(self, row: Row) -> int:
        return row.integer("preference_strength", -MAX_STRENGTH, MAX_STRENGTH)

    def votes(self, row: Row) -> tuple[int, ...]:
        column = next((name for name in VOTES if name in row), None)
        return () if column is None else annotator_scores(row, column, "strength", NEITHER)


def marked_turns(row: Row, text: str) -> Prompt:
    """Alternating turns; the text before the first marker is the first user turn."""
    first, *marked = TURN.split(text)
    turns = [Message("user", first)]
    for speaker, content in zip(marked[::2], marked[1::2], strict=True):
        if speaker.lower() == turns[-1].role:
            raise row.error(f"'prompt' has two turns by '{speaker.lower()}' in a row (turn {len(turns) + 1})")
        turns.append(Message(speaker.lower(), content))
    return tuple(turns)
