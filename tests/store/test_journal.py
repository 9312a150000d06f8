"""Work so far that a later attempt relies on: only what is exactly as it was written."""

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


@given(place=st.integers(0, 300), byte=st.integers(1, 255), cut=st.booleans())
def test_nothing_after_damage_is_believed(tmp_path_factory, place, byte, cut):
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    data = bytearray(written(path))
    place %= len(data)
    damaged = data[:place] if cut else data[:place] + bytes([data[place] ^ byte]) + data[place + 1 :]
    path.write_bytes(damaged)
    lines = bytes(data[:place]).count(b"\n")  # whole ones before the damage
    journal = Journal(path)
    assert journal.values[:lines] == VALUES[:lines]
    assert journal.values == VALUES[: len(journal.values)]
    assert len(journal.values) < len(VALUES)
    for value in VALUES[len(journal.values) :]:
        journal.add(value)
    assert path.read_bytes() == bytes(data)  # done again, it is as if nothing had happened


@pytest.mark.parametrize(
    "text", ["", "\n", "[]\n", "7\n", "null\n", '{"sum": 1}\n', '{"sum": "x", "value": 1}\n', "[" * 9999]
)
def test_files_that_are_no_journal(tmp_path, text):
    path = tmp_path / "journal.jsonl"
    path.write_text(text)
    assert Journal(path).values == []


def test_lines_that_changed_places(tmp_path):
    path = tmp_path / "journal.jsonl"
    first, second, *rest = written(path).split(b"\n")
    path.write_bytes(b"\n".join([second, first, *rest]))
    assert Journal(path).values == []
