"""What an unknown shape may mean: a line that is ready to use, and that works."""

import json
import shlex

import pytest

from unmdpo.core.errors import DataError
from unmdpo.data import load_comparisons
from unmdpo.data.sources.guess import guessed

NESTED = {
    "meta": {"id": 7}, "question": {"text": "Why?"},
    "good": {"answer": "Light scatters.", "score": 9}, "bad": {"answer": "No.", "score": 4},
}  # fmt: skip
SIDES = {"task": "Why?", "leftText": "Light scatters.", "rightText": "No.", "choice": "left"}
TOOL = {
    "task_id": "17", "instruction": "Why?", "response_a": "x", "response_b": "y", "preferred": "A",
    "how_much": "better",
}  # fmt: skip
IN_PARTS = {
    "The question": "Why?", "Its context": "",
    "Answer A": "No.", "Answer B": "Light scatters.", "Which is better?": "B",
}  # fmt: skip
LISTED = {"instruction": {"en": "Why?"}, "outputs": {"model_1": "No.", "model_2": "Light scatters."}, "verdict": 2}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (NESTED, {"prompt": "question.text", "chosen": "good.answer", "rejected": "bad.answer",
                  "score_chosen": "good.score", "score_rejected": "bad.score"}),
        (SIDES, {"prompt": "task", "response_a": "leftText", "response_b": "rightText", "label": "choice"}),
        (LISTED, {"prompt": "instruction.en", "response_a": "outputs.model_1", "response_b": "outputs.model_2",
                  "label": "verdict"}),
        (TOOL, {"prompt": "instruction", "response_a": "response_a", "response_b": "response_b",
                "label": "preferred", "strength": "how_much"}),
        (
            {"Task ID": 1, "Question": "Shorten this.", "Context": "It is.", "Answer A": "x", "Answer B": "y"},
            {"prompt": "Question,Context", "response_a": "Answer A", "response_b": "Answer B"},
        ),
        ({"title": "Why?", "body": "Because.", "likes": 3}, {}),
    ],
)  # fmt: skip
def test_what_columns_may_hold(row, expected):
    assert guessed(row) == expected


@pytest.mark.filterwarnings("ignore:the margins take too few distinct values")
@pytest.mark.parametrize("row", [NESTED, SIDES, LISTED, IN_PARTS])
def test_the_line_that_is_offered_works(tmp_path, row):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"match no known source.*Try: --column") as caught:
        load_comparisons(str(path))
    words = shlex.split(str(caught.value).partition("Try: ")[2].partition(" (`columns`")[0])  # as a shell reads it
    columns = dict(word.split("=", 1) for word in words if word != "--column")
    (found,) = load_comparisons(str(path), columns=columns).rows
    assert (found.prompt[0].content, found.chosen, found.rejected) == ("Why?", "Light scatters.", "No.")
