"""Bad data: every error names the file and the row and says what to do; a few bad rows can be skipped instead."""

import gzip
import json
import os

import pyarrow
import pyarrow.parquet
import pytest
from pydantic import TypeAdapter, ValidationError

from tests.worlds.rows import GOOD, HELPSTEER3, PREFERENCE, helpsteer3_row, preference, without
from unmdpo.core.errors import DataError, UnmdpoWarning, UserError
from unmdpo.data import PairRule, StrengthRule, load_comparisons, rows_of
from unmdpo.data.bad import BadRowLimit
from unmdpo.data.load import load
from unmdpo.data.readers import files
from unmdpo.data.strength import MOST_PAIRS


def write_text(tmp_path, rows, name="bad.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("case", HELPSTEER3)
def test_bad_helpsteer3_row(tmp_path, case):
    bad, message = HELPSTEER3[case]
    path = write_text(tmp_path, [GOOD, bad, GOOD])
    with pytest.raises(DataError, match=message) as caught:
        load_comparisons(path, source="helpsteer3")
    assert str(caught.value).startswith(f"{path}, row 2: ")
    with pytest.warns(UnmdpoWarning, match=r"1 of 3 rows is bad, and skipped:\n  1 × .*\(row 2\)"):
        data = load_comparisons(path, source="helpsteer3", max_bad_rows=1)
    assert (len(data), len(data.skipped), data.read) == (2, 1, 3)


@pytest.mark.parametrize("case", PREFERENCE)
def test_bad_preference_row(tmp_path, case):
    bad, message = PREFERENCE[case]
    path = write_text(tmp_path, [preference(), bad])
    with pytest.raises(DataError, match=message) as caught:
        load_comparisons(path, source="preference")
    assert str(caught.value).startswith(f"{path}, row 2: ")


def test_negative_margin(tmp_path):
    rows = [{"prompt": "Q", "chosen": "a", "rejected": "b", "score_chosen": 1, "score_rejected": 3}]
    with pytest.raises(DataError, match="margin score_chosen − score_rejected is -2"):
        load_comparisons(write_text(tmp_path, rows))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "Q", "response": "r", "scores": []}, "at least one score"),
        ({"prompt": "Q", "response": "r", "scores": ["9"]}, "should be a number, not text"),
        ({"prompt": "Q", "responses": ["a", "b"], "scores": [1]}, "2 responses but 1 scores"),
        ({"prompt": "Q", "responses": ["a", 3], "scores": [1, 2]}, r"'responses\[1\]' should be text"),
        ({"prompt": "Q", "responses": ["a\ud83d"], "scores": [1]}, "half of a surrogate pair"),
        ({"prompt": "Q", "response": "r", "score": 1, "domain": [3]}, "'domain' should be text"),
    ],
)
def test_bad_scored_row(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        load_comparisons(write_text(tmp_path, [row]), source="scored")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"context": [', "malformed JSON at column"),
        (b"[" * 100_000, "malformed JSON"),
        (b'{"chosen": "a", "rejected": "b", "chosen": "c"}', "the name 'chosen' stands twice"),
        (b'{"a": "\xff\xfe"}', "not UTF-8 (byte 7 is 0xff)"),
    ],
)
def test_bad_line(tmp_path, line, message):
    path = tmp_path / "bad.jsonl"
    good = json.dumps(GOOD).encode()
    path.write_bytes(b"\n".join([good, b"", line, good]))
    with pytest.raises(DataError) as caught:
        load_comparisons(str(path))
    assert f"{path}, row 3: " in str(caught.value)
    assert message in str(caught.value)
    with pytest.warns(UnmdpoWarning, match="1 of 3 rows is bad"):
        assert len(load_comparisons(str(path), max_bad_rows=1)) == 2


def test_truncated_gzip_is_never_skipped(tmp_path):
    path = tmp_path / "cut.jsonl.gz"
    whole = gzip.compress("".join(json.dumps(helpsteer3_row(f"{i}?")) + "\n" for i in range(999)).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"gzip stream is damaged after row \d+ .*download the file again"):
        load_comparisons(str(path), max_bad_rows=999)


def test_a_bad_first_row_decides_nothing(tmp_path):
    rows = [preference(strength=None), *(preference(prompt=f"{k}?", strength=k) for k in (1, 2, 3))]
    with pytest.warns(UnmdpoWarning, match="skipped"):
        data = load_comparisons(write_text(tmp_path, rows), source="preference", max_bad_rows=1)
    assert [row.strength for row in data] == [1, 2, 3]
    unlike = write_text(tmp_path, [{"other": 1}, GOOD], "first.jsonl")
    with pytest.warns(UnmdpoWarning, match="skipped"):
        assert len(load_comparisons(unlike, max_bad_rows=1)) == 1
    alone = write_text(tmp_path, [{"other": 1}], "alone.jsonl")
    with pytest.raises(DataError, match=r"alone.jsonl, row 1: these columns match no known source"):
        load_comparisons(alone)


def test_broken_list_names_the_line(tmp_path):
    path = tmp_path / "list.json"
    path.write_text('[\n{"a": 1},\n{"a": 2,,}\n]')
    with pytest.raises(DataError, match=r"list.json: malformed JSON at line 3, column 9"):
        load_comparisons(str(path))
    path.write_text('{\n"data": [1]\n}')
    with pytest.raises(DataError, match="match no known source: data"):
        load_comparisons(str(path))


def test_parquet_with_broken_text(tmp_path):
    raw = pyarrow.array([b"\xff\xfe"]).view(pyarrow.binary())
    text = pyarrow.Array.from_buffers(pyarrow.string(), 1, raw.buffers())
    pyarrow.parquet.write_table(pyarrow.table({"prompt": text}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        load_comparisons(str(tmp_path / "x.parquet"))


@pytest.mark.parametrize("path", ["~nosuchuser/x.jsonl", "x" * 5000, "a/" * 3000])
def test_strange_paths(path):
    with pytest.raises(UserError, match=r"no such file or folder|should be a path or a name: .* not longer than"):
        load_comparisons(path)


def test_messages_fit_a_screen(tmp_path):
    long_role = helpsteer3_row(context=[{"role": "r" * 20_000, "content": "a"}])
    many_columns = {f"column{i}": i for i in range(3000)}
    for row in (long_role, many_columns):
        with pytest.raises(DataError) as caught:
            load_comparisons(write_text(tmp_path, [row]), source="helpsteer3")
        assert len(str(caught.value)) < 1000


def test_settings_that_do_not_apply(tmp_path):
    path = write_text(tmp_path, [GOOD])
    levels, gap = {"strength": StrengthRule(levels=7)}, {"pairing": PairRule(min_gap=4)}
    for settings, name in ((levels, "strength"), (gap, "pairing")):
        with pytest.raises(UserError, match=f"{name} settings do not apply"):
            load_comparisons(path, **settings)
    with pytest.raises(UserError, match="pairing settings do not apply"):
        load_comparisons(write_text(tmp_path, [preference()], "p.jsonl"), **gap)


def test_one_file_has_no_other_split(tmp_path):
    with pytest.raises(UserError, match="a single file without splits, so there is no split 'validation'"):
        load_comparisons(write_text(tmp_path, [GOOD]), split="validation")


def test_not_gzip_at_all(tmp_path):
    path = tmp_path / "plain.jsonl.gz"
    path.write_text(json.dumps(GOOD))
    with pytest.raises(UserError, match="gzip stream is damaged after row 0"):
        load_comparisons(str(path))


def test_not_parquet(tmp_path):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        load_comparisons(str(path))


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_empty_file(tmp_path, content):
    path = tmp_path / "empty.jsonl"
    path.write_text(content)
    with pytest.raises(UserError, match="has no rows"):
        load_comparisons(str(path))


def test_folder_without_data(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UserError, match="no data files in this folder"):
        load_comparisons(str(tmp_path))


def test_unknown_ending(tmp_path):
    (tmp_path / "x.xml").write_text("a,b")
    with pytest.raises(UserError, match=r"unknown file type; known: \.jsonl"):
        load_comparisons(str(tmp_path / "x.xml"))


def test_unknown_columns_name_the_nearest_source(tmp_path):
    path = write_text(tmp_path, [without("context") | {"contxt": []}])
    with pytest.raises(UserError, match=r"closest is 'helpsteer3', but it needs 'context' \(did you mean 'contxt'"):
        load_comparisons(path)


def test_split_without_rows(tmp_path):
    path = write_text(
        tmp_path, [{"split": "train", "prompt": "Q", "response_1": "a", "response_2": "b", "preference_strength": 1}]
    )
    with pytest.raises(UserError, match="no comparisons in the split 'validation'"):
        load_comparisons(path, split="validation")


def test_all_bad_rows_are_found_at_once_and_listed_by_kind(tmp_path):
    rows = [GOOD, *(helpsteer3_row(label=label) for label in (9, 8, 7, 6)), helpsteer3_row("  ")]
    listing = tmp_path / "bad-rows.jsonl"
    with pytest.raises(DataError) as caught:
        load(rows_of(write_text(tmp_path, rows), max_bad_rows=4), listing=listing)
    message = str(caught.value)
    assert "5 of 6 rows are bad:" in message
    assert "4 × 'overall_preference' should be a whole number from -3 to 3, not 9 (rows 2, 3, 4, …)" in message
    assert "1 × 'context' is empty: its last user turn has no text (row 6)" in message
    assert "max_bad_rows allows 4: fix the data, or raise the limit (data.max_bad_rows in a recipe" in message
    assert f"all of them are in {listing}" in message
    listed = [json.loads(line) for line in listing.read_text().splitlines()]
    assert [row["row"] for row in listed] == [2, 3, 4, 5, 6]


def test_a_share_of_bad_rows_is_skipped_by_default(tmp_path):
    good = [helpsteer3_row(f"{i}?") for i in range(198)]
    path = write_text(tmp_path, [*good, helpsteer3_row(" "), helpsteer3_row("")])
    with pytest.warns(UnmdpoWarning, match=r"2 of 200 rows are bad, and skipped:\n  2 × .*\(rows 199, 200\)"):
        assert len(load_comparisons(path)) == 198
    with pytest.raises(DataError, match=r"2 of 200 rows are bad(.|\n)*allows 1 \(0.99 %\)"):
        load_comparisons(path, max_bad_rows=0.0099)
    with pytest.raises(DataError, match="allows 0:"):
        load_comparisons(path, max_bad_rows=0)


@pytest.mark.parametrize(("given", "limit"), [(3, 3), (0, 0), (0.05, 0.05), ("2%", 0.02), ("0.5 %", 0.005)])
def test_a_limit_is_a_number_or_a_share(given, limit):
    assert TypeAdapter(BadRowLimit).validate_python(given) == limit


@pytest.mark.parametrize("given", [-1, 1.0, 2.5, "many", "120%"])
def test_other_limits_are_refused(given):
    with pytest.raises(ValidationError):
        TypeAdapter(BadRowLimit).validate_python(given)


def test_a_gzipped_file_that_unpacks_to_no_end(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_ROW_BYTES", 1 << 20)
    path = tmp_path / "pairs.jsonl.gz"
    for content in (b" " * 5_000_000, b'{"prompt": "' + b"a" * 5_000_000 + b'"}'):
        path.write_bytes(gzip.compress(content))
        with pytest.raises(DataError, match=r"pairs\.jsonl\.gz, row 1: is longer than 1,048,576 bytes"):
            load_comparisons(str(path))


def test_lines_and_lines_of_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_EMPTY", 1000)
    path = tmp_path / "pairs.jsonl"
    row = json.dumps(preference(strength=1)) + "\n"
    path.write_text(row + "\n" * 900 + row.replace("Q", "R"))
    assert len(load_comparisons(str(path)).rows) == 2
    path.write_text(row + "\n" * 1002)
    with pytest.raises(DataError, match="has 1,000 empty lines after row 1"):
        load_comparisons(str(path))


def test_a_pipe_is_no_file(tmp_path):
    path = tmp_path / "pairs.jsonl"
    os.mkfifo(path)
    with pytest.raises(UserError, match="this is not a file"):
        load_comparisons(str(path))


def test_a_prompt_with_thousands_of_responses_is_not_all_pairs_of_them(tmp_path):
    path = tmp_path / "scored.jsonl"
    rows = [{"prompt": "Q", "response": f"answer {place}", "score": place} for place in range(3000)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = load_comparisons(str(path))
    assert len(data.rows) == MOST_PAIRS
    assert data.left_out == {
        f"pairs beyond {MOST_PAIRS:,} of a prompt, drawn at random": 3000 * 2999 // 2 - MOST_PAIRS
    }


def test_drawn_pairs_are_pairs():
    scores = list(range(7))
    drawn = list(PairRule(most=10).select(scores))
    assert len({(better, worse) for better, worse, _ in drawn}) == 10
    assert all(scores[better] - scores[worse] == gap > 0 for better, worse, gap in drawn)
    some = PairRule(most=20)  # all but one: every place is unranked to its own pair
    assert {(b, w) for b, w, _ in some.select(scores)} < {(b, w) for b in scores for w in scores if b > w}
    assert len(set(some.select(scores))) == 20


def test_a_column_that_stands_twice_in_a_table(tmp_path):
    table = pyarrow.table([["q"], ["a"], ["b"], ["c"]], names=["prompt", "chosen", "rejected", "chosen"])
    pyarrow.parquet.write_table(table, tmp_path / "twice.parquet")
    with pytest.raises(DataError, match="the column 'chosen' stands twice"):
        load_comparisons(str(tmp_path / "twice.parquet"))


def test_linked_folders_are_read_and_links_to_nowhere_are_named(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    write_text(tmp_path / "data", [{"prompt": "Q", "chosen": "a", "rejected": "b", "strength": 1}])
    write_text(tmp_path / "elsewhere", [{"prompt": "R", "chosen": "a", "rejected": "b", "strength": 2}])
    (tmp_path / "data" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "round").symlink_to(tmp_path / "data")
    assert len(load_comparisons(str(tmp_path / "data"))) == 2
    (tmp_path / "data" / "train-00002.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match=r"train-00002\.jsonl is a link to .*gone, which does not exist"):
        load_comparisons(str(tmp_path / "data"))


def test_numbers_as_python_writes_them_are_no_numbers(tmp_path):
    with pytest.raises(DataError, match="'score' should be a number, not text"):
        load_comparisons(write_text(tmp_path, [{"prompt": "Q", "response": "r", "score": "1_0"}]), source="scored")


@pytest.mark.filterwarnings("ignore:the margins take too few")
def test_scored_responses_belong_to_their_system_message(tmp_path):
    rows = [
        {"system": system, "prompt": "Q", "response": text, "score": score}
        for system, text, score in (("kind", "a", 3), ("rude", "b", 1), ("kind", "c", 1), ("kind", "a", 2))
    ]
    (only,) = {(row.prompt[0].content, row.chosen, row.rejected) for row in scored(tmp_path, rows)}
    assert only == ("kind", "a", "c")


def scored(tmp_path, rows):
    return load_comparisons(write_text(tmp_path, rows), source="scored")
