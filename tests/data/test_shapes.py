"""Every published shape is recognized by its columns and read as its authors mean it."""

import csv
import gzip
import json

import datasets
import pyarrow
import pytest

from tests.worlds.shapes import PAIR, PROMPT, SHAPES, battle, said, shp, talk, user
from unmdpo.core.errors import DataError, UserError
from unmdpo.data import SOURCES, StrengthRule, load_comparisons
from unmdpo.data.comparison import BOTH_BAD


@pytest.mark.filterwarnings("ignore:.*no strengths, margins or scores were found")
@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_recognized_and_read(write, name):
    shape = SHAPES[name]
    rule = {"strength": StrengthRule(**shape.settings)}
    data = load_comparisons(write(shape.rows), **rule)
    assert data.source == shape.source
    assert [(row.chosen, row.rejected, row.strength) for row in (*data.rows, *data.ties)] == shape.expected
    assert data.rows[0].prompt[-1].content == shape.prompt
    assert data.rows[0].prompt[-1].role == "user"
    assert sum(data.left_out.values()) == shape.left_out
    named = load_comparisons(write(shape.rows), source=shape.source, **rule)
    assert list(named.rows) == list(data.rows)


def test_every_source_has_a_shape_and_words():
    tried = {shape.source for shape in SHAPES.values()} | {"scored"}  # scored: tests/data/test_sources.py
    assert tried == set(SOURCES)
    assert all(source.strength for source in SOURCES.values())


@pytest.mark.filterwarnings("ignore:.*no strengths, margins or scores were found")
@pytest.mark.parametrize("name", SHAPES)
def test_one_broken_row_is_found_in_every_shape(write, name):
    """A column of the wrong kind in one row of many is counted with its row, and the others are read."""
    shape = SHAPES[name]
    columns = next(shapes for shapes in SOURCES[shape.source].shapes if shapes <= shape.rows[0].keys())
    rows, place = [row for _ in range(120) for row in shape.rows], len(shape.rows)
    rows[place] = rows[place] | dict.fromkeys(columns, 3.5)
    rule = {"strength": StrengthRule(**shape.settings)}
    with pytest.warns(UserWarning, match=rf"1 of \d+ rows is bad, and skipped:\n.*row {place + 1}\)"):
        data = load_comparisons(write(rows), source=shape.source, **rule)
    assert len(data.skipped) == 1
    assert len(data) > 0


# --- Votes ----------------------------------------------------------------------------------------


def test_repeated_votes_become_votes(write):
    votes = [battle("model_a"), battle("model_b", "Nine.", "Seven."), battle("model_b"), battle("tie")]
    votes = [vote | {"judge": f"judge {i}"} for i, vote in enumerate(votes)]
    (row,) = load_comparisons(write(votes)).rows
    assert (row.chosen, row.strength, row.votes) == ("Seven.", 1, (1, 1, -1, 0))
    many = load_comparisons(write([battle("model_a", judge=f"judge {i}") for i in range(5)])).rows[0]
    assert (many.strength, len(many.votes)) == (3, 5)
    again = load_comparisons(write([battle("model_a")] * 5))
    assert (again.rows[0].strength, again.left_out) == (1, {"the same vote again": 4})


def test_both_bad_and_ties_are_kept_apart(write):
    rows = [
        battle("tie", "a", "b"),
        battle("both_bad", "c", "d"),
        battle("tie (bothbad)", "e", "f"),
        battle("model_a"),
    ]
    data = load_comparisons(write(rows))
    assert [tie.tie for tie in data.ties] == ["", BOTH_BAD, BOTH_BAD]
    assert len(data) == 1


def test_histories_that_differ_are_left_out_and_counted(write):
    rows = [battle("model_a"), battle("model_a", turn=2, conversation_a=[*talk("x"), *talk("y")],
                                      conversation_b=[*talk("z"), *talk("y")])]  # fmt: skip
    data = load_comparisons(write(rows))
    assert data.left_out == {"the two conversations differ before their last answers": 1}
    assert not data.skipped


def test_an_unknown_winner_is_a_bad_row(write):
    with pytest.raises(DataError, match="'winner' is 'model_c'; did you mean 'model_"):
        load_comparisons(write([battle("model_c"), battle("model_a")]))


def test_usual_thresholds_give_way_to_the_users(write):
    rows = [shp(1, 300, 100), shp(1, 900, 100)]
    assert [row.strength for row in load_comparisons(write(rows))] == [2, 3]
    given = {"strength": StrengthRule(thresholds=(5.0, 8.0))}
    assert [row.strength for row in load_comparisons(write(rows), **given)] == [1, 3]
    two = {"strength": StrengthRule(levels=2, thresholds=(5.0,))}
    assert [row.strength for row in load_comparisons(write(rows), **two)] == [1, 2]


# --- What holds no comparisons --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"context": [user("Q")], "response1": "a", "response2": "b", "feedback1": ["f"], "feedback2": ["g"]},
         "use its configuration 'preference'"),
        ({"context": [user("Q")], "response": "a", "principle": "p", "fulfilment": "Yes"}, "one response in a row"),
        ({"info": {}, "summary": {"text": "s"}, "worker": "w"}, "use 'comparisons'"),
        ({"prompt": "Q", "completion": "a", "label": True}, "unpaired preferences"),
        ({"instruction": "Q", "input": "", "output": "a"}, "demonstrations"),
        ({"transcript": "\n\nHuman: x", "rating": 4.0}, "single conversations"),
        ({"message_id": "m", "parent_id": "p", "message_tree_id": "t", "rank": 0, "text": "a"}, "message trees"),
    ],
)  # fmt: skip
def test_data_without_comparisons_says_so(write, row, says):
    with pytest.raises(DataError, match=f"there are no comparisons in this: .*{says}"):
        load_comparisons(write([row]))


@pytest.mark.filterwarnings("ignore:.*no strengths")
def test_images_are_refused_in_a_sentence(write):
    prompt = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}]
    with pytest.raises(DataError, match="parts that are not text, such as images"):
        load_comparisons(write([{"prompt": prompt, "chosen": [said("a")], "rejected": [said("b")]}]))


# --- Columns by other names -----------------------------------------------------------------------


def test_columns_lead_into_nested_fields(write):
    rows = [
        {"task": {"text": f"{i}?"}, "answers": [{"t": "bad"}, {"t": "good"}], "label": {"k": 1 + i % 3}, "a.b": "math"}
        for i in range(6)
    ]
    columns = {"prompt": "task.text", "chosen": "answers.-1.t", "rejected": "answers.0.t", "strength": "label.k",
               "domain": "a.b"}  # fmt: skip
    data = load_comparisons(write(rows), columns=columns)
    assert [(row.chosen, row.rejected, row.strength, row.domain) for row in data][:2] == [
        ("good", "bad", 1, "math"),
        ("good", "bad", 2, "math"),
    ]
    assert data.source == "preference"


def test_columns_of_scored_responses(write):
    rows = [{"q": "Q?", "outs": ["a", "b"], "marks": [1, 5]}]
    given = {"strength": StrengthRule(thresholds=(2.0, 3.0))}
    columns = {"prompt": "q", "responses": "outs", "scores": "marks"}
    (row,) = load_comparisons(write(rows), columns=columns, **given)
    assert (row.chosen, row.strength) == ("b", 3)


def test_columns_for_a_named_source(write):
    """Someone's own votes, in the shape of a source that knows signed strengths."""
    rows = [{"q": "Q?", "a": "x", "b": "y", "delta": -2}]
    columns = {"prompt": "q", "response_1": "a", "response_2": "b", "preference_strength": "delta"}
    (row,) = load_comparisons(write(rows), source="helpsteer2", columns=columns)
    assert (row.chosen, row.strength) == ("x", 2)


def test_a_path_that_leads_nowhere(write):
    rows = [{"task": {"text": "Q"}, "good": "a", "bad": "b"}]
    with pytest.raises(DataError, match=r"columns.prompt: there is no 'task.txt'; 'task' has no such part"):
        load_comparisons(write(rows), columns={"prompt": "task.txt", "chosen": "good", "rejected": "bad"})
    with pytest.raises(DataError, match=r"columns.chosen: there is no 'god'; did you mean 'good'"):
        load_comparisons(write(rows), columns={"prompt": "task.text", "chosen": "god", "rejected": "bad"})


def test_strengths_in_words(write):
    words = {"slightly better": 1, "better": 2, "much better": 3, "about the same": 0}
    rows = [PROMPT | PAIR | {"how": word} for word in ("better", "much better", "about the same", "slightly better")]
    rule = {"strength": StrengthRule(column="how", labels=words)}
    data = load_comparisons(write(rows), **rule)
    assert [row.strength for row in data] == [2, 3, 1]
    assert len(data.ties) == 1
    with pytest.raises(DataError, match=r"'how' is 'beter', which .* does not list; did you mean 'better'"):
        load_comparisons(write([PROMPT | PAIR | {"how": "beter"}]), **rule)


# --- Files ----------------------------------------------------------------------------------------


def rows_of(count=6):
    return [{"prompt": f"{i}?", "chosen": 'a\nb, "c"', "rejected": "d", "strength": 1 + i % 3} for i in range(count)]


def test_csv_and_tsv(tmp_path):
    for name, delimiter in (("a.csv", ","), ("b.tsv", "\t"), ("c.csv.gz", ",")):
        path = tmp_path / name
        with gzip.open(path, "wt", newline="") if name.endswith("gz") else path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows_of()[0], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows_of())
        data = load_comparisons(str(path))
        assert [row.strength for row in data] == [1, 2, 3, 1, 2, 3]
        assert data.rows[0].chosen == 'a\nb, "c"'


def test_what_save_to_disk_writes(tmp_path):
    whole = datasets.Dataset.from_list(rows_of())
    whole.save_to_disk(tmp_path / "one")
    assert len(load_comparisons(str(tmp_path / "one"))) == 6
    datasets.DatasetDict({"train": whole, "test": whole.select(range(2))}).save_to_disk(tmp_path / "several")
    assert len(load_comparisons(str(tmp_path / "several"))) == 6
    assert len(load_comparisons(str(tmp_path / "several"), split="test")) == 2


def test_an_arrow_file_and_a_damaged_one(tmp_path):
    table = pyarrow.Table.from_pylist(rows_of())
    with pyarrow.ipc.new_file(str(tmp_path / "x.arrow"), table.schema) as file:
        file.write_table(table)
    assert len(load_comparisons(str(tmp_path / "x.arrow"))) == 6
    (tmp_path / "y.arrow").write_bytes((tmp_path / "x.arrow").read_bytes()[:100])
    with pytest.raises(UserError, match="not a readable Arrow file"):
        load_comparisons(str(tmp_path / "y.arrow"))


def test_ndjson_is_json_lines(tmp_path):
    (tmp_path / "x.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows_of()))
    assert len(load_comparisons(str(tmp_path / "x.ndjson"))) == 6
