"""Work so far that a later attempt goes on from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmdpo.store.journal import Journal

VALUES = [{"budget": 7}, [{"prompt": 0, "text": "ä\u2028\n"}], ["hash", 0.25], "x"]


def written(path, values=VALUES):
    journal = Journal(path)
    for value in values:
        journal.add(value)
    return path.read_bytes()


def test_what_was_added_is_there_again_and_goes_on(tmp_path):
    path = tmp_path / "state" / "journal.jsonl"
    written(path)
    again = Journal(path)
    assert again.values == VALUES
    again.add("more")
    assert Journal(path).values == [*VALUES, "more"]


@given(cut=st.integers(0, 300))
def test_a_line_that_was_cut_off_is_dropped(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    content = written(path)
    cut %= len(content)
    path.write_bytes(content[:cut])
    whole = content[:cut].count(b"\n")
    journal = Journal(path)
    assert journal.values == VALUES[:whole]
    for value in VALUES[whole:]:
        journal.add(value)
    assert path.read_bytes() == content  # done again, it is as if nothing had happened


@pytest.mark.parametrize("text", ["", "\n", "no json\n", "[" * 9999 + "\n", "[1"])
def test_files_that_are_no_journal(tmp_path, text):
    path = tmp_path / "journal.jsonl"
    path.write_text(text)
    assert Journal(path).values == []
