"""Pairs with the votes of several annotators: HelpSteer3 and HelpSteer2."""

import re

from unmdpo.data.identity import Message, Prompt
from unmdpo.data.rows import Row
from unmdpo.data.sources.base import Annotated, HubData, Source, Texts, one_by_one, shape

MAX_STRENGTH = 3
NEITHER = -100  # in HelpSteer2: an annotator found neither response valid
# HelpSteer2's votes: all of them before the three that formed the label, which were selected for their agreement.
VOTES2 = ("all_preferences_unprocessed", "three_most_similar_preferences")
TURN = re.compile(r"<extra_id_1>(User|Assistant)\n")


def _source(shapes: frozenset[str], annotated: Annotated, strength: str, **more: object) -> Source:
    read = one_by_one(lambda row: annotated.texts(row).compare(row, annotated.label(row), annotated.votes(row)))
    return Source((shapes,), read, strength, annotated=annotated, **more)  # type: ignore[arg-type]


def _scores(row: Row, column: str, key: str, unusable: int | None = None) -> tuple[int, ...]:
    """The signed strengths in a list of per-annotator objects; `unusable` means no strength at all."""
    scores = []
    for i, judgment in enumerate(row.items(column)):
        where = f"{column}[{i}].{key}"
        if not isinstance(judgment, dict) or key not in judgment:
            raise row.error(f"'{where}' is missing")
        if unusable is None or judgment[key] != unusable:
            scores.append(row.as_integer(where, judgment[key], -MAX_STRENGTH, MAX_STRENGTH))
    return tuple(scores)


def _texts3(row: Row) -> Texts:
    about = (row.optional_text("domain"), row.optional_text("language"))
    return Texts(row.prompt("context"), row.text("response1"), row.text("response2"), *about)


def _votes3(row: Row) -> tuple[int, ...]:
    return _scores(row, "individual_preference", "score") if "individual_preference" in row else ()


HELPSTEER3 = _source(
    shape("context", "response1", "response2", "overall_preference"),
    Annotated(
        _texts3,
        lambda row: row.integer("overall_preference", -MAX_STRENGTH, MAX_STRENGTH),
        _votes3,
        ("overall_preference", "individual_preference"),
    ),
    "|`overall_preference`|, 1–3",
    hub=HubData("nvidia/HelpSteer3", config="preference", pairs=36_299, prompts=22_756, validation_rows=2_017),
)


def marked_turns(row: Row) -> Prompt:
    """HelpSteer2's prompt: alternating turns; the text before the first marker is the first user turn."""
    first, *marked = TURN.split(row.text("prompt"))
    turns = [Message("user", first)]
    for speaker, content in zip(marked[::2], marked[1::2], strict=True):
        if speaker.lower() == turns[-1].role:
            raise row.error(f"'prompt' has two turns by '{speaker.lower()}' in a row (turn {len(turns) + 1})")
        turns.append(Message(speaker.lower(), content))
    return row.check_prompt("prompt", tuple(turns))


def _votes2(row: Row) -> tuple[int, ...]:
    column = next((name for name in VOTES2 if name in row), None)
    return () if column is None else _scores(row, column, "strength", NEITHER)


HELPSTEER2 = _source(
    shape("prompt", "response_1", "response_2", "preference_strength"),
    Annotated(
        lambda row: Texts(marked_turns(row), row.text("response_1"), row.text("response_2")),
        lambda row: row.integer("preference_strength", -MAX_STRENGTH, MAX_STRENGTH),
        _votes2,
        ("preference_strength", *VOTES2),
    ),
    "|`preference_strength`|, 1–3",
    hub=HubData("nvidia/HelpSteer2", data_dir="preference", pairs=6_766, prompts=6_765, validation_rows=448),
    split_column="split",
)
