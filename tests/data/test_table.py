"""Comparisons in Arrow: the same rows in the same order, in memory, in a spool and in a file."""

import json
import tracemalloc

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmdpo.data import Comparison, DataRef, Message, Origin, load_comparisons, parquet
from unmdpo.data import table as tables
from unmdpo.data.load import Reading, load
from unmdpo.data.parquet import write_parquet
from unmdpo.data.table import ComparisonTable, Spool, concatenate

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
    write_parquet(place, rows)
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


def test_small_batches_and_groups_change_nothing(tmp_path, monkeypatch):
    write_parquet(tmp_path / "one.parquet", data())
    monkeypatch.setattr(tables, "ROWS", 7)
    monkeypatch.setattr(tables, "READ", 3)
    write_parquet(tmp_path / "batches.parquet", data())
    assert (tmp_path / "batches.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()
    monkeypatch.setattr(parquet, "GROUP_BYTES", 500)
    write_parquet(tmp_path / "groups.parquet", data())
    several = ComparisonTable.read(tmp_path / "groups.parquet")
    assert len(several.chunks.groups) > 3
    assert list(several) == data()
    assert [several[i].chosen for i in (49, 0, 25)] == ["a49", "a0", "a25"]


def test_views_and_joins(tmp_path):
    spool = Spool(tmp_path / "spool.arrow")
    for row in data():
        spool.add(row)
    table = spool.finish()
    strengths = table["strength"].to_numpy()
    rows, ties = (ComparisonTable.view(table, kept) for kept in (strengths > 0, strengths == 0))
    assert [row.strength for row in rows[:4]] == [1, 2, 3, 1]
    assert len(rows) + len(ties) == 50
    odd = rows.where(np.array([i % 2 == 1 for i in range(len(rows))]))
    assert list(odd) == list(rows)[1::2]
    both = concatenate([odd, ties, odd])
    assert list(both) == [*odd, *ties, *odd]
    assert both[len(odd)] == ties[0]
    with pytest.raises(IndexError):
        both[len(both)]


def test_a_spool_gives_what_memory_gives(tmp_path, write):
    rows = [
        {"prompt": f"{i}?", "chosen": "a", "rejected": "b", "score_chosen": i % 7 + 0.5, "score_rejected": i % 3 / 10}
        for i in range(60)
    ]
    path = write(rows)
    held = load_comparisons(path)
    spooled = load(DataRef(path), Reading(), spool=tmp_path / "spool.arrow")
    assert list(spooled.rows) == list(held.rows)
    assert {row.strength for row in held} == {1, 2, 3}


def test_memory_does_not_grow_with_the_data(tmp_path):
    """What Python holds at its peak while 30 MB of text go to a spool."""
    path = tmp_path / "long.jsonl"
    path.write_text(
        (json.dumps({"prompt": "?", "chosen": "a" * 1500, "rejected": "b" * 1500, "strength": 1}) + "\n") * 10_000
    )
    load(DataRef(str(path)), Reading(), spool=tmp_path / "warm.arrow")
    tracemalloc.start()
    before = pyarrow.total_allocated_bytes()
    data = load(DataRef(str(path)), Reading(), spool=tmp_path / "spool.arrow")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(data) == 10_000
    assert peak < 16e6  # one batch of rows
    assert pyarrow.total_allocated_bytes() - before < 2e6  # the texts are in the file
