"""Exports of labelling tools, in their real form."""

import json

import pytest

from unmdpo.core.errors import UserError
from unmdpo.data import StrengthRule, load_comparisons

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


@pytest.mark.parametrize(
    ("row", "votes"),
    [
        (task("left"), ()),
        (task("left", "left", "right"), (1, 1, -1)),
        (task("left", "right", "left", cancelled=(1,)), (1, 1)),
        (task("1", "2", "a", kind="choices"), (1, -1, 1)),
        (record("a"), ()),
        (record("1", "2", "1", status=["submitted", "discarded", "submitted"]), (1, 1)),
        ({"id": "1", "fields": TEXTS, "responses": {"best": [{"value": "a", "user_id": "u"}]}}, ()),
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


def test_words_of_a_tool_are_mapped(write):
    """A label question may have any answers."""
    rows = [record("response1"), record("response2")]
    with pytest.raises(UserError, match=r"strength: \{labels: \{response1: \?, response2: \?\}\}"):
        load_comparisons(write(rows))
    rule = StrengthRule(labels={"response1": "a", "response2": "b"})
    data = load_comparisons(write(rows), **{"strength": rule})
    assert [row.chosen for row in data] == ["Four.", "Five."]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (task("left") | {"data": "x"}, "'data' should be an object"),
        (task("left") | {"data": {"answer1": "Four.", "answer2": "Five."}}, "the task has no prompt"),
        ({"fields": [], "responses": {}}, "should be objects"),
    ],
)
def test_what_is_not_as_the_tool_writes_it_is_a_bad_row(write, row, why):
    with pytest.raises(UserError, match=why):
        load_comparisons(write([row]))
