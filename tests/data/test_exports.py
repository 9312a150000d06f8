"""Exports of labelling tools, in their real form."""

import json

import pytest

from unmdpo.core.errors import UserError
from unmdpo.data import load_comparisons

TEXTS = {"instruction": "Two plus two?", "response1": "Four.", "response2": "Five."}


def task(*selected, cancelled=(), kind="pairwise"):
    def value(label):
        return {"selected": label} if kind == "pairwise" else {"choices": [label]}

    return {
        "id": 7, "data": {"prompt": "Two plus two?", "answer1": "Four.", "answer2": "Five."}, "predictions": [],
        "annotations": [
            {"id": 1, "completed_by": place, "was_cancelled": place in cancelled,
             "result": [{"type": kind, "from_name": "x", "to_name": "answer1", "value": value(label)}]}
            for place, label in enumerate(selected)
        ],
    }  # fmt: skip


def record(*answers, status=None):
    """Argilla's flat form."""
    return {
        "id": "1", "status": "completed", "_server_id": "3f", **TEXTS, "best.responses": [*answers],
        "best.responses.users": ["u"] * len(answers), "best.responses.status": status or ["submitted"] * len(answers),
    }  # fmt: skip


def choice(accept, answer="accept", ids=(0, 1)):
    options = [{"id": ids[0], "text": "Four."}, {"id": ids[1], "text": "Five."}]
    return {"text": "Two plus two?", "options": options, "accept": accept, "answer": answer, "_view_id": "choice"}


@pytest.mark.parametrize(
    ("row", "votes"),
    [
        (task("left"), ()),
        (task("left", "left", "right"), (1, 1, -1)),
        (task("left", "right", "left", cancelled=(1,)), (1, 1)),
        (task("A is slightly better", "A is much better", kind="choices"), (1, 3)),
        (record("response1"), ()),
        (record("response1", "response2", "response1", status=["submitted", "discarded", "submitted"]), (1, 1)),
        ({"id": "1", "fields": TEXTS, "responses": {"best": [{"value": "response1", "user_id": "u"}]}}, ()),
        (choice([0]), ()),
        (choice(["x"], ids=("x", "y")), ()),
    ],
)
def test_labels_of_each_tool(write, row, votes):
    (found,) = load_comparisons(write([row]))
    assert (found.prompt[-1].content, found.chosen, found.rejected) == ("Two plus two?", "Four.", "Five.")
    assert found.votes == votes


def test_a_whole_file_of_label_studio(tmp_path):
    path = tmp_path / "project-1.json"
    path.write_text(json.dumps([task("left") | {"id": 1}, task("right") | {"id": 2}]))
    assert [row.chosen for row in load_comparisons(str(path))] == ["Four.", "Five."]


def test_options_are_known_by_their_id_wherever_they_are_shown(write):
    shuffled = choice([0], ids=(1, 0))
    (found,) = load_comparisons(write([shuffled]))
    assert found.chosen == "Five."


def test_what_says_nothing_is_counted(write):
    data = load_comparisons(write([choice([0]), choice([], "ignore"), choice([])]))
    assert len(data) == 1
    assert data.left_out == {"the annotator rejected or skipped the task": 1, "there is no label": 1}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (choice([5]), "names an option that there is not"),
        (choice([0]) | {"options": [{"id": 0, "text": "Four."}]}, "two objects with an id and a text"),
        (task("left") | {"data": "x"}, "'data' should be an object"),
        (task("left") | {"data": {"answer1": "Four.", "answer2": "Five."}}, "the task has no prompt"),
        ({"fields": [], "responses": {}}, "should be objects"),
    ],
)
def test_what_is_not_as_the_tool_writes_it_is_a_bad_row(write, row, why):
    with pytest.raises(UserError, match=why):
        load_comparisons(write([row]))
