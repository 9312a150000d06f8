"""Labels as people write them: sides, degrees, signs, scales; what cannot be known is asked."""

import json

import pytest

from unmdpo.core.errors import DataError, UserError
from unmdpo.data import DataRef, SourceSettings, load_comparisons
from unmdpo.data.load import Reading, load
from unmdpo.data.strength import StrengthRule

ROW = {"prompt": "Why?", "response_a": "first", "response_b": "second"}


def read(tmp_path, labels, column="label", rule=None, **more):
    path = tmp_path / "rows.jsonl"
    rows = [ROW | {"prompt": f"Why {i}?", column: label} | more for i, label in enumerate(labels)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reading = Reading(settings=SourceSettings(strength=rule or StrengthRule()), max_bad_rows=0)
    found = load(DataRef(str(path)), reading)
    assert found.source == "sides"
    signs = {row.source.row: row.strength * (-1 if row.chosen == "first" else 1) for row in found.rows}
    return [signs.get(i, 0) for i in range(1, len(labels) + 1)], found


@pytest.mark.parametrize(
    ("labels", "signs"),
    [
        (["left", "right", "tie"], [-1, 1, 0]),
        (["model-1", "model-2", "both bad"], [-1, 1, 0]),
        (["response_1", "response-2", "Same"], [-1, 1, 0]),
        (["Response A", "The second answer", "neither"], [-1, 1, 0]),
        ([1, 2, 0], [-1, 1, 0]),
        (["1", "2", "2"], [-1, 1, 1]),
        ([-3, -1, 0, 2, 3], [-3, -1, 0, 2, 3]),
        (
            [
                "A much better",
                "A better",
                "A slightly better",
                "about the same",
                "B is slightly better",
                "B is better",
            ],
            [-3, -2, -1, 0, 1, 2],
        ),
        (["a_significantly_better", "b_marginally_better", "equally good"], [-3, 1, 0]),
        ([-2.0, 1.0, 2.0, 0.0], [-2, 1, 2, 0]),
        (["−2", "+1", "0"], [-2, 1, 0]),
        (["[[A]]", "[[B]]", "it's a tie"], [-1, 1, 0]),
        (["B is a bit better", "a lot better: A", "the second one"], [1, -3, 2]),
    ],
)
def test_labels_that_say_what_they_mean(tmp_path, labels, signs):
    assert read(tmp_path, labels)[0] == signs


def test_both_bad_is_counted_apart_and_an_empty_label_is_left_out(tmp_path):
    _, found = read(tmp_path, ["left", "both are bad", "tie", None])
    assert [row.tie for row in found.ties] == ["both bad", ""]
    assert found.left_out == {"there is no label": 1}


def test_several_annotators_vote(tmp_path):
    signs, found = read(tmp_path, [["left", "left", "right"], ["B much better", "tie", "B better"]], "labels")
    assert signs == [-1, 2]
    assert [row.votes for row in found.rows] == [(2, 2, -2), (3, 0, 2)]
    assert read(tmp_path, [["A", "A", "B"]], "labels")[0] == [-1]


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        ([1, 4, 7], "strength: {levels: 3, labels: {1: -3, 2: -2, 3: -1, 4: 0, 5: 1, 6: 2, 7: 3}}"),
        ([5, 2, 3], "--label 1=-2 --label 2=-1 --label 3=0 --label 4=1 --label 5=2"),
        ([6, 1], "--label 3=-1 --label 4=1"),
        ([0, 1], "labels: {0: -1, 1: 1}"),
    ],
)
def test_a_scale_without_a_sign_is_asked_about_with_a_line_that_is_ready(tmp_path, labels, line):
    with pytest.raises(UserError, match="do not say what side they mean") as caught:
        read(tmp_path, labels)
    assert line in str(caught.value)


def test_the_users_own_words(tmp_path):
    rule = StrengthRule(labels={"links": "a", "rechts": "b", "gleich": "tie"})
    assert read(tmp_path, ["links", "rechts ", "gleich"], "choice", rule)[0] == [-1, 1, 0]
    likert = StrengthRule(labels={value: value - 4 for value in range(1, 8)})
    assert read(tmp_path, [1, 4, 7, 6], "rating", likert)[0] == [-3, 0, 3, 2]
    with pytest.raises(DataError, match=r"'label' is 'oben', which strength\.labels does not list"):
        read(tmp_path, ["oben"], rule=rule)
    with pytest.raises(ValueError, match="labels go up to 5, but there are 3 levels"):
        StrengthRule(labels={"x": -5})


WRONG = [
    "A is worse",
    "not B",
    "A or B",
    "maybe",
    "A is bad",
    "no A",
    "1-0",
    "2/5",
    1.5,
    "same as A",
    "that's right",
    "B > A",
]


@pytest.mark.parametrize("label", WRONG)
def test_what_names_no_better_side_is_a_bad_row(tmp_path, label):
    with pytest.raises(DataError, match="does not say which response is better"):
        read(tmp_path, ["A", label])


def test_labels_that_change_their_kind_are_not_guessed(tmp_path):
    for labels in ([2, 1] * 100 + [-1], [1] * 200 + [0], [1, 2] * 100 + [3]):
        with pytest.raises(UserError, match="no label before was: say what all labels mean"):
            read(tmp_path, labels)
    with pytest.raises(UserError, match="numbers from 1500 to 1620, which do not say"):
        read(tmp_path, [1500, 1620])


def test_a_side_with_its_strength_and_what_belongs_to_the_prompt(tmp_path):
    signs, found = read(tmp_path, ["left", "right"], strength=3, system="Be brief.", tools=[{"name": "f"}])
    assert signs == [-3, 3]
    assert [turn.role for turn in found.rows[0].prompt] == ["tools", "system", "user"]
    with pytest.raises(UserError, match="only levels and labels apply"):
        read(tmp_path, ["left"], rule=StrengthRule(column="x"))


@pytest.mark.parametrize(
    ("rule", "signs"),
    [
        (None, [-3, 1, 0, -2]),
        (StrengthRule(levels=5, labels={"much better": 5, "bit": 2, "better": 3}), [-5, 2, 0, -3]),
    ],
)
def test_how_much_better_in_words_of_its_own_column(tmp_path, rule, signs):
    path = tmp_path / "rows.csv"
    how = ["much better", "bit" if rule else "slightly better", "", "better"]
    rows = [f"{n},Why {n}?,first,second,{side},{word}" for n, (side, word) in enumerate(zip("ABTa", how, strict=True))]
    text = "\n".join(["task_id,instruction,response_a,response_b,preferred,how_much", *rows]).replace(",T,", ",tie,")
    path.write_text(text + "\n")
    columns = {"prompt": "instruction", "strength": "how_much"}
    settings = SourceSettings(strength=rule or StrengthRule())
    found = load(DataRef(str(path)), Reading(settings=settings, columns=columns, max_bad_rows=0))
    read = {row.source.row: row.strength * (-1 if row.chosen == "first" else 1) for row in found.rows}
    assert [read.get(place, 0) for place in range(1, 5)] == signs
    path.write_text(text.replace("slightly better" if rule is None else "bit", "a tad") + "\n")
    with pytest.raises(DataError, match="'strength' is 'a tad', which"):
        load(DataRef(str(path)), Reading(settings=settings, columns=columns, max_bad_rows=0))


def test_pairs_that_say_which_is_better_are_read_as_before(tmp_path):
    path = tmp_path / "rows.jsonl"
    row = {
        "prompt": "q?",
        "chosen": "G",
        "rejected": "B",
        "output_1": "B",
        "output_2": "G",
        "rating": "1",
        "strength": 2,
    }
    path.write_text(json.dumps(row) + "\n")
    found = load(DataRef(str(path)), Reading())
    assert (found.source, found.rows[0].chosen) == ("preference", "G")


@pytest.mark.parametrize("label", ["!A", "-A", "A--", "A <", "~A", "👎 A", "A ✗", "A?", "not-A"])
def test_a_sign_that_may_turn_a_label_around_is_not_read_over(tmp_path, label):
    with pytest.raises(DataError, match="does not say which response is better"):
        read(tmp_path, ["A", "B", label])


@pytest.mark.parametrize("label", ["A.", "A!", "[[A]]", "(A)", '"A"', "model-a"])
def test_what_only_surrounds_a_label_changes_nothing(tmp_path, label):
    assert read(tmp_path, [label])[0] == [-1]


def test_degrees_that_come_late_do_not_change_what_came_before(tmp_path):
    with pytest.raises(UserError, match="none of the first 200 labels did"):
        read(tmp_path, ["A is better"] * 205 + ["A is much better"])


def test_a_prompt_in_several_columns(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("ask,about,first,second,choice\nShorten.,So it is.,x,y,A\nWhy?,,x,y,B\n")
    columns = {"prompt": "ask,about", "response_a": "first", "response_b": "second", "label": "choice"}
    found = load_comparisons(str(file), columns=columns).rows
    assert [row.prompt[0].content for row in found] == ["Shorten.\n\nSo it is.", "Why?"]
    listed = tmp_path / "rows.jsonl"  # turns in one column are no parts of one turn
    listed.write_text('{"ask": ["Why?", "So?"], "first": "x", "second": "y", "choice": "A"}\n')
    with pytest.raises(UserError, match="should be a message with role and content"):
        load_comparisons(str(listed), columns=columns | {"prompt": "ask"})
