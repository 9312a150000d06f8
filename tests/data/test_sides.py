"""Labels of two responses side by side: sides, signs, the user's own words; what cannot be known is asked."""

import json

import pytest

from unmdpo.core.errors import DataError, UnmdpoWarning, UserError
from unmdpo.data import load_comparisons
from unmdpo.data.strength import StrengthRule

ROW = {"prompt": "Why?", "response_a": "first", "response_b": "second"}


def read(tmp_path, labels, column="label", rule=None, max_bad_rows=0, **more):
    path = tmp_path / "rows.jsonl"
    rows = [ROW | {"prompt": f"Why {i}?", column: label} | more for i, label in enumerate(labels)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"strength": rule or StrengthRule()}
    data = load_comparisons(str(path), **settings, max_bad_rows=max_bad_rows)
    assert data.source == "sides"
    signs = {row.source.row: row.strength * (-1 if row.chosen == "first" else 1) for row in data.rows}
    return [signs.get(i, 0) for i in range(1, len(labels) + 1)], data


@pytest.mark.parametrize(
    ("labels", "signs"),
    [
        (["a", "b", "tie"], [-1, 1, 0]),
        (["A", " B ", "Tie"], [-1, 1, 0]),
        ([1, 2, 0], [-1, 1, 0]),
        (["1", "2", "2"], [-1, 1, 1]),
        ([1.0, 2.0, "1.0"], [-1, 1, -1]),
        ([-3, -1, 0, 2, 3], [-3, -1, 0, 2, 3]),
        ([-2.0, 1.0, 2.0, 0.0], [-2, 1, 2, 0]),
        (["−2", "+1", "0"], [-2, 1, 0]),
    ],
)
def test_labels_that_say_what_they_mean(tmp_path, labels, signs):
    assert read(tmp_path, labels)[0] == signs


def test_an_empty_label_is_left_out(tmp_path):
    _, data = read(tmp_path, ["a", "tie", None, ""])
    assert (len(data), len(data.ties), data.left_out) == (1, 1, {"there is no label": 2})


def test_several_annotators_vote(tmp_path):
    signs, data = read(tmp_path, [["a", "a", "b"], ["3", "0", "2"], ["+1", "-1"]], "labels")
    assert signs == [-1, 2, 0]
    assert [row.votes for row in data.rows] == [(1, 1, -1), (3, 0, 2)]


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        (["left", "right", "a"], "{a: -1, left: ?, right: ?}"),
        ([1, 4, 7], "{1: -1, 4: ?, 7: ?}"),
        ([0, 1], "{0: ?, 1: ?}"),
        (["A is much better", "B is better"], "{A is much better: ?, B is better: ?}"),
    ],
)
def test_other_labels_are_listed_for_a_map(tmp_path, labels, shown):
    with pytest.raises(UserError, match="do not say which response is better") as caught:
        read(tmp_path, labels)
    assert f"strength: {{labels: {shown}}}" in str(caught.value)
    assert "--label LABEL=MEANING" in str(caught.value)


def test_the_users_own_words(tmp_path):
    rule = StrengthRule(labels={"links": "a", "rechts": "b", "gleich": "tie", "viel besser: B": 3})
    assert read(tmp_path, ["links", "Rechts ", "gleich", "viel besser: B"], "choice", rule)[0] == [-1, 1, 0, 3]
    likert = StrengthRule(labels={value: value - 4 for value in range(1, 8)})
    assert read(tmp_path, [1, 4, 7, 6], "rating", likert)[0] == [-3, 0, 3, 2]
    with pytest.raises(ValueError, match="labels go up to 5, but there are 3 levels"):
        StrengthRule(labels={"x": -5})


@pytest.mark.parametrize("label", ["!A", "A--", "not B", "B > A", "👎 A", "1-0", 1.5, 3])
def test_a_label_among_many_that_is_none_of_them_is_a_bad_row(tmp_path, label):
    with pytest.warns(UnmdpoWarning, match="1 of 41 rows is bad"):
        signs, data = read(tmp_path, ["a", "b"] * 20 + [label], max_bad_rows=1)
    assert signs[-1] == 0
    (error,) = data.skipped
    assert "which is none of the labels: a, b, tie, 1, 2, 0" in str(error)
    assert "row 41" in str(error)


def test_labels_that_change_their_kind_are_bad_rows(tmp_path):
    """Signs that come late do not change what the first rows settled."""
    with pytest.raises(DataError, match="'label' is '-1', which is none of the labels"):
        read(tmp_path, [2, 1] * 100 + [-1])


def test_a_side_with_its_strength_and_what_belongs_to_the_prompt(tmp_path):
    signs, data = read(tmp_path, ["a", "b"], strength=3, system="Be brief.", tools=[{"name": "f"}])
    assert signs == [-3, 3]
    assert [turn.role for turn in data.rows[0].prompt] == ["tools", "system", "user"]
    with pytest.raises(UserError, match="only levels and labels apply"):
        read(tmp_path, ["a"], rule=StrengthRule(column="x"))


def test_how_much_better_in_a_column_of_its_own(tmp_path):
    path = tmp_path / "rows.csv"
    rows = [
        "instruction,response_a,response_b,preferred,how_much",
        "Why?,first,second,A,much",
        "So?,first,second,B,bit",
    ]
    path.write_text("\n".join([*rows, "And?,first,second,tie,"]) + "\n")
    settings = {"strength": StrengthRule(labels={"much": 3, "bit": 1})}
    columns = {"prompt": "instruction", "strength": "how_much"}
    data = load_comparisons(str(path), **settings, columns=columns, max_bad_rows=0)
    assert [(row.chosen, row.strength) for row in data.rows] == [("first", 3), ("second", 1)]
    assert len(data.ties) == 1


def test_pairs_that_say_which_is_better_are_read_as_pairs(tmp_path):
    path = tmp_path / "rows.jsonl"
    row = {
        "prompt": "q?",
        "chosen": "G",
        "rejected": "B",
        "output_1": "B",
        "output_2": "G",
        "rating": 1,
        "strength": 2,
    }
    path.write_text(json.dumps(row) + "\n")
    data = load_comparisons(str(path))
    assert (data.source, data.rows[0].chosen) == ("preference", "G")


def test_a_prompt_in_several_columns(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("ask,about,first,second,choice\nShorten.,So it is.,x,y,A\nWhy?,,x,y,B\n")
    columns = {"prompt": "ask,about", "response_a": "first", "response_b": "second", "label": "choice"}
    rows = load_comparisons(str(file), columns=columns).rows
    assert [row.prompt[0].content for row in rows] == ["Shorten.\n\nSo it is.", "Why?"]
    listed = tmp_path / "rows.jsonl"  # turns in one column are no parts of one turn
    listed.write_text('{"ask": ["Why?", "So?"], "first": "x", "second": "y", "choice": "A"}\n')
    with pytest.raises(UserError, match="should be a message with role and content"):
        load_comparisons(str(listed), columns=columns | {"prompt": "ask"})
