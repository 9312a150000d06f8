"""Files and habits that people brought, and that were once read wrongly, silently or not at all."""

import json
from decimal import Decimal

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from tests.worlds.shapes import PAIR, PROMPT, said, user
from unmdpo.core.errors import DataError, UserError
from unmdpo.data import load_comparisons


def rows_of(count=6):
    return [{"prompt": f"{i}?", "chosen": "a", "rejected": "d", "strength": 1 + i % 3} for i in range(count)]


def text_file(tmp_path, name, text, encoding="utf-8"):
    (tmp_path / name).write_bytes(text.encode(encoding))
    return str(tmp_path / name)


def test_csv_takes_nothing_for_a_number(tmp_path):
    """Answers such as 007, true or a date stay as they were written."""
    path = text_file(tmp_path, "x.csv", "prompt,chosen,rejected,strength\nWho?,007,true,2\nWhen?,2024-01-01,42,3\n")
    data = load_comparisons(path)
    assert [(row.chosen, row.rejected, row.strength) for row in data] == [("007", "true", 2), ("2024-01-01", "42", 3)]


@pytest.mark.parametrize("delimiter", ";|")
def test_csv_with_other_delimiters(tmp_path, delimiter):
    text = "prompt,chosen,rejected,strength\nQ,a,b,2\n".replace(",", delimiter)
    assert [row.strength for row in load_comparisons(text_file(tmp_path, "x.csv", text))] == [2]


def test_csv_with_a_broken_row_and_a_missing_answer(tmp_path):
    good = "".join(f"Q{i},a,b,1\n" for i in range(400))
    path = text_file(tmp_path, "x.csv", "prompt,chosen,rejected,strength\n" + good + "Q,a,b\nQ,,b,1\n")
    with pytest.warns(
        UserWarning, match=r"2 of 402 rows are bad(.|\n)*3 fields, but the header has 4(.|\n)*not missing"
    ):
        assert len(load_comparisons(path)) == 400


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl"])
def test_other_encodings_are_named(tmp_path, name):
    text = "prompt,chosen,rejected\nQ,é,b\n" if name == "x.csv" else '{"prompt": "Q"}\n'
    with pytest.raises(UserError, match=r"not UTF-8 \(.*UTF-16"):
        load_comparisons(text_file(tmp_path, name, text, "utf-16"))


@pytest.mark.filterwarnings("ignore:.*no strengths")
def test_messages_written_as_json_are_read_back(write):
    pack = json.dumps
    row = {"prompt": pack([user("Q?")]), "chosen": pack([said('it\'s "a"')]), "rejected": pack([said("b")])}
    (read,) = load_comparisons(write([row]))
    assert (read.prompt[0].content, read.chosen, read.rejected) == ("Q?", 'it\'s "a"', "b")
    numpy_like = row | {"prompt": "[{'role': 'user', 'content': 'a'}\n {'role': 'assistant', 'content': 'b'}]"}
    with pytest.raises(DataError, match=r"messages written as text, but not as JSON; write them with json\.dumps"):
        load_comparisons(write([numpy_like]))


def test_strengths_beside_transcripts_count(write):
    row = {"chosen": "\n\nHuman: Q\n\nAssistant: a", "rejected": "\n\nHuman: Q\n\nAssistant: b"}
    data = load_comparisons(write([row | {"strength": k, "domain": "x"} for k in (1, 2, 3)]))
    assert (data.source, [r.strength for r in data], data.rows[0].domain) == ("hh", [1, 2, 3], "x")


@pytest.mark.filterwarnings("ignore:.*no strengths")
def test_text_before_a_transcript_is_a_system_message(write):
    first = {"chosen": "\n\nHuman: Q\n\nAssistant: a", "rejected": "\n\nHuman: Q\n\nAssistant: b"}
    second = {name: "You are a pirate.\n\nHuman: Q2\n\nAssistant: " + name for name in ("chosen", "rejected")}
    data = load_comparisons(write([first, second]))
    assert [message.role for message in data.rows[1].prompt] == ["system", "user"]


def test_what_stands_beside_the_prompt(write):
    row = {"chosen": "a", "rejected": "b", "strength": 1}
    (history,) = load_comparisons(write([row | {"instruction": "And?", "input": "", "history": [["Hi", "Hello"]]}]))
    assert [message.content for message in history.prompt] == ["Hi", "Hello", "And?"]
    (system,) = load_comparisons(write([row | {"prompt": "Q?", "system_prompt": "Be brief."}]))
    assert system.prompt[0].role == "system"
    with pytest.raises(DataError, match="'prompt' should be text or a list of messages, not missing"):
        load_comparisons(write([row | {"prompt": None, "question": "scraped"}]))


def test_a_strength_column_that_is_empty_throughout_is_none(write):
    rows = [{"prompt": f"{i}?", "chosen": "a", "rejected": "b", "strength": None, "margin": i + 1.0} for i in range(9)]
    assert {row.strength for row in load_comparisons(write(rows))} == {1, 2, 3}


def test_named_columns_come_before_others(write):
    rows = [PROMPT | PAIR | {"strength": 1, "gap": 1.0 + i} for i in range(9)]
    data = load_comparisons(
        write(rows), columns={"prompt": "prompt", "chosen": "chosen", "rejected": "rejected", "margin": "gap"}
    )
    assert {row.strength for row in data} == {1, 2, 3}
    with pytest.raises(DataError, match=r"columns.strength: there is no 'gapp'; did you mean 'gap'"):
        load_comparisons(write(rows), columns={"strength": "gapp"})


def test_ratings_belong_to_texts(write):
    row = {"input": "Q?", **PAIR, "generations": ["Nine.", "Seven."], "rating": [9.0, 3.0]}
    with pytest.raises(DataError, match="the chosen response is rated lower, by 6"):
        load_comparisons(write([row]))


def test_texts_that_look_like_lists_stay_texts(write):
    row = {"prompt": "List two.", "model_a": "x", "model_b": "y", "response_a": '["x","y"]', "response_b": '["x","z"]',
           "winner": "A"}  # fmt: skip
    (read,) = load_comparisons(write([row]))
    assert (read.chosen, read.rejected) == ('["x","y"]', '["x","z"]')


def test_a_split_column_is_believed_and_reported(write):
    rows = [PROMPT | PAIR | {"strength": 1, "split": split} for split in ("train", "train", "test")]
    data = load_comparisons(write(rows))
    assert (len(data), data.left_out) == (2, {"they are of the split 'test'": 1})
    assert len(load_comparisons(write(rows), split="test")) == 1
    assert len(load_comparisons(write(rows), split="all")) == 3


def test_splits_with_longer_names(tmp_path, write):
    for name in ("train_prefs", "train_sft", "test_prefs"):
        write(rows_of(), f"uf/{name}-00000-of-00001.jsonl")
    folder = str(tmp_path / "uf")
    with pytest.raises(UserError, match="several splits are 'train' here: train_prefs, train_sft; say which"):
        load_comparisons(folder, source="preference")
    assert len(load_comparisons(folder, split="train_prefs")) == 6


def test_files_beside_the_data(tmp_path, write):
    write(rows_of(), "folder/train.jsonl")
    (tmp_path / "folder" / "config.json").write_text('{\n "a": 1\n}')
    (tmp_path / "folder" / "train-empty.jsonl").write_text("")
    assert len(load_comparisons(str(tmp_path / "folder"))) == 6
    write(rows_of(), "folder/extra.jsonl")
    with pytest.warns(UserWarning, match="not read, since other files are named after the split 'train': extra.jsonl"):
        assert len(load_comparisons(str(tmp_path / "folder"))) == 6
    datasets.Dataset.from_list(rows_of()).save_to_disk(tmp_path / "saved")
    stream = next((tmp_path / "saved").glob("data-*.arrow")).read_bytes()
    (tmp_path / "saved" / "cache-0123456789abcdef.arrow").write_bytes(stream)
    assert len(load_comparisons(str(tmp_path / "saved"))) == 6


def test_tables_with_other_types(tmp_path):
    rows = [row | {"strength": Decimal(row["strength"]), "domain": 7, "language": None} for row in rows_of()]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    data = load_comparisons(str(tmp_path / "x.parquet"))
    assert ([row.strength for row in data][:3], data.rows[0].domain) == ([1, 2, 3], "7")
    sides = {"prompt": {"role": ["user"], "content": ["Q?"]}, "chosen": "a", "rejected": "b", "strength": 1}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([sides]), tmp_path / "y.parquet")
    assert load_comparisons(str(tmp_path / "y.parquet")).rows[0].prompt[0].content == "Q?"


def test_columns_that_mean_nothing_and_columns_in_capitals(write):
    with pytest.raises(DataError, match=r"match no known source: q, ans. Say which columns hold what with `columns`"):
        load_comparisons(write([{"q": "Q", "ans": "a"}]))
    with pytest.raises(DataError, match=r"match no known source: Prompt, Chosen, Rejected\. Say which"):
        load_comparisons(write([{"Prompt": "Q", "Chosen": "a", "Rejected": "b"}]))


def test_a_column_called_split_that_means_something_else(write):
    rows = [PROMPT | PAIR | {"strength": 1, "split": word} for word in ("alpha", "beta", None)]
    assert len(load_comparisons(write(rows))) == 3
    with pytest.raises(UserError, match="there is no split 'validation'"):
        load_comparisons(write(rows), split="validation")
    prefs = [PROMPT | PAIR | {"strength": 1, "split": word} for word in ("train_prefs", "test_prefs", None)]
    assert [len(load_comparisons(write(prefs), split=name)) for name in ("train", "test_prefs", "test")] == [2, 1, 1]


def test_file_names_decide_in_a_folder(tmp_path, write):
    write([row | {"split": "test"} for row in rows_of()], "named/train.jsonl")
    write(rows_of(2), "named/train_more.jsonl")
    write(rows_of(3), "named/test.jsonl")
    assert len(load_comparisons(str(tmp_path / "named"))) == 8
    assert len(load_comparisons(str(tmp_path / "named"), split="test")) == 3


def test_an_unclosed_quote_takes_its_lines_with_it(tmp_path):
    good = "".join(f"Q{i},a,b,1\n" for i in range(400))
    path = text_file(tmp_path, "x.csv", "prompt,chosen,rejected,strength\n" + good + 'Q,"a,b,1\n' + good)
    with pytest.raises(DataError, match="401 of 801 rows are bad"):
        load_comparisons(path)


def test_a_header_that_names_a_column_twice(tmp_path):
    with pytest.raises(DataError, match="the header names 'prompt' twice"):
        load_comparisons(text_file(tmp_path, "y.csv", "prompt,prompt,chosen,rejected\nQ,P,a,b\n"))


@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_file_with_one_row(tmp_path, indent):
    row = {"prompt": [user("Q?")], "chosen": [said("a")], "rejected": [said("b")], "strength": 1}
    (tmp_path / "x.json").write_text(json.dumps(row, indent=indent))
    assert load_comparisons(str(tmp_path / "x.json")).rows[0].chosen == "a"


def test_texts_about_messages_stay_texts(write):
    asked, answered = "[{'role': 'x'}] what does this mean?", '[{"role": "robot", "content": "hi"}]'
    row = {"prompt": asked, "chosen": answered, "rejected": "b", "strength": 1}
    (read,) = load_comparisons(write([row]))
    assert (read.prompt[0].content, read.chosen) == (asked, answered)


def test_a_file_of_junk_is_given_up_early(tmp_path):
    (tmp_path / "x.jsonl").write_text("junk\n" * 300_000)
    with pytest.raises(DataError, match=r"row 1: malformed JSON"):
        load_comparisons(str(tmp_path / "x.jsonl"))


def test_a_typo_in_columns_is_found_with_a_named_source_too(write):
    columns = {"prompt": "q", "response_1": "a", "response_2": "b", "preference_strength": "dleta"}
    with pytest.raises(DataError, match=r"columns.preference_strength: there is no 'dleta'; did you mean 'delta'"):
        load_comparisons(write([{"q": "Q?", "a": "x", "b": "y", "delta": 1}]), source="helpsteer2", columns=columns)


def test_a_file_that_holds_the_same_rows_again_is_refused(tmp_path, write):
    write(rows_of(), "folder/train.jsonl")
    write(rows_of(), "folder/train.jsonl.gz")
    with pytest.raises(UserError, match=r"train\.jsonl\.gz lies beside train\.jsonl, and its rows would count twice"):
        load_comparisons(str(tmp_path / "folder"))


def test_a_file_about_tests_is_no_split(tmp_path, write):
    write(rows_of(), "folder/unit_test_generation.jsonl")
    write(rows_of(3), "folder/validating_answers.jsonl")
    assert len(load_comparisons(str(tmp_path / "folder"))) == 9
    with pytest.raises(UserError, match="no files for the split 'test'"):
        load_comparisons(str(tmp_path / "folder"), split="test")
