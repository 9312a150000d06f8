"""Comparisons in Arrow: the same rows in the same order, in memory and in a file."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmdpo.data import Comparison, Message, Origin
from unmdpo.data import table as tables
from unmdpo.data.table import ComparisonTable, concatenate

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
MORE = st.sampled_from(["", '{"tool_calls": [{"function": {"name": "é"}}]}'])
TURNS = st.lists(
    st.builds(Message, st.sampled_from(["system", "user", "assistant", "tool"]), TEXT, MORE), max_size=3
).map(tuple)
ROWS = st.builds(
    Comparison,
    prompt=TURNS,
    chosen_turns=TURNS,
    rejected_turns=TURNS,
    chosen=TEXT,
    rejected=TEXT,
    strength=st.integers(0, 3) | st.floats(0, 9),
    weight=st.none() | st.floats(0, 9),
    source=st.builds(Origin, TEXT, st.integers(1, 10**12)),
    domain=TEXT,
    language=TEXT,
    votes=st.lists(st.integers(-3, 3), max_size=4).map(tuple),
    tie=st.sampled_from(["", "both bad"]),
    part=st.sampled_from(["", "a"]),
)


@given(st.lists(ROWS, max_size=9))
def test_rows_come_back_from_memory_and_from_a_file(tmp_path_factory, rows):
    place = tmp_path_factory.mktemp("table") / "x.parquet"
    held = ComparisonTable.of(rows)
    held.write(place)
    kept = ComparisonTable.read(place)
    for table in (held, kept):
        assert list(table) == rows
        assert [table[i] for i in range(len(rows))] == rows
        assert table[1:3] == rows[1:3]
        assert list(table.prompt_hashes()) == [row.prompt_hash for row in rows]
        assert table.numbers("strength").tolist() == [row.strength for row in rows]


def data(count=50):
    return [
        Comparison(
            (Message("user", f"{i // 3}?"),), f"a{i}", f"b{i}", i % 4, Origin("f", i + 1), "de"[i % 2], votes=(i,)
        )
        for i in range(count)
    ]


def test_small_batches_change_nothing(tmp_path, monkeypatch):
    ComparisonTable.of(data()).write(tmp_path / "one.parquet")
    monkeypatch.setattr(tables, "ROWS_PER_BATCH", 7)
    monkeypatch.setattr(tables, "ROWS_DECODED", 3)
    ComparisonTable.of(data()).write(tmp_path / "batches.parquet")
    assert (tmp_path / "batches.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()
    several = ComparisonTable.read(tmp_path / "batches.parquet")
    assert list(several) == data()
    assert [several[i].chosen for i in (49, 0, 25)] == ["a49", "a0", "a25"]


def test_views_and_joins():
    table = ComparisonTable.of(data())
    strengths = table.numbers("strength")
    rows, ties = table.where(strengths > 0), table.where(strengths == 0)
    assert [row.strength for row in rows[:4]] == [1, 2, 3, 1]
    assert len(rows) + len(ties) == 50
    odd = rows.where(np.array([i % 2 == 1 for i in range(len(rows))]))
    assert list(odd) == list(rows)[1::2]
    both = concatenate([odd, ties, odd])
    assert list(both) == [*odd, *ties, *odd]
    assert both[len(odd)] == ties[0]
    with pytest.raises(IndexError):
        both[len(both)]
