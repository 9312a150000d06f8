"""Comparisons as an Arrow table: one in each row, in memory while a source is read, in a Parquet file afterwards."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from unmdpo.data.comparison import Comparison, Origin
from unmdpo.data.identity import Message, Prompt, prompt_hash

ROWS_PER_BATCH = 4_096  # while a table is filled
ROWS_DECODED = 1_024  # at a time
ROWS_PER_GROUP = 1 << 20  # of a Parquet file

COLUMNS = pa.schema(
    [
        ("prompt", pa.string()),
        ("chosen", pa.string()),
        ("rejected", pa.string()),
        ("strength", pa.float64()),  # until it is known whether all are whole numbers
        ("domain", pa.string()),
        ("language", pa.string()),
        ("votes", pa.list_(pa.int32())),
        ("file", pa.string()),
        ("row", pa.int64()),
        ("tie", pa.string()),
        ("part", pa.string()),
        ("chosen_turns", pa.string()),
        ("rejected_turns", pa.string()),
        ("weight", pa.float64()),
        ("margin", pa.float64()),  # what a strength is cut from: never kept in a file
    ]
)
OPTIONAL = ("tie", "part", "chosen_turns", "rejected_turns", "weight")  # in a file only where some row has them
KEPT = [name for name in COLUMNS.names if name not in (*OPTIONAL, "margin")]
STRENGTH = COLUMNS.get_field_index("strength")


def prompt_text(prompt: Prompt) -> str:
    return json.dumps([message if message.more else message[:2] for message in prompt], ensure_ascii=False)


@lru_cache(maxsize=4_096)
def prompt_of(text: str) -> Prompt:
    """Rows of one prompt share one copy of it, as long as they are near each other."""
    return tuple(Message(*turn) for turn in json.loads(text))


def _as_values(row: Comparison) -> dict[str, Any]:
    return {
        "prompt": prompt_text(row.prompt),
        "chosen": row.chosen,
        "rejected": row.rejected,
        "strength": row.strength,
        "domain": row.domain,
        "language": row.language,
        "votes": row.votes,
        "file": row.source.file,
        "row": row.source.row,
        "tie": row.tie,
        "part": row.part,
        "chosen_turns": prompt_text(row.chosen_turns) if row.chosen_turns else "",
        "rejected_turns": prompt_text(row.rejected_turns) if row.rejected_turns else "",
        "weight": row.weight,
        "margin": row.margin,
    }


def _as_comparison(values: dict[str, Any]) -> Comparison:
    return Comparison(
        prompt=prompt_of(values["prompt"]),
        chosen=values["chosen"],
        rejected=values["rejected"],
        strength=values["strength"],
        source=Origin(values["file"], values["row"]),
        domain=values["domain"],
        language=values["language"],
        votes=tuple(values["votes"]),
        tie=values.get("tie", ""),
        part=values.get("part", ""),
        chosen_turns=prompt_of(values.get("chosen_turns") or "[]"),
        rejected_turns=prompt_of(values.get("rejected_turns") or "[]"),
        weight=values.get("weight"),
    )


class Collector:
    """Comparisons one by one, and their margins where strengths are still to be cut; a table at the end."""

    def __init__(self) -> None:
        self._waiting: list[dict[str, Any]] = []
        self._batches: list[pa.RecordBatch] = []

    def add(self, row: Comparison) -> None:
        self._waiting.append(_as_values(row))
        if len(self._waiting) == ROWS_PER_BATCH:
            self._flush()

    def finish(self) -> pa.Table:
        self._flush()
        return pa.Table.from_batches(self._batches, schema=COLUMNS)

    def _flush(self) -> None:
        self._batches.append(pa.RecordBatch.from_pylist(self._waiting, schema=COLUMNS))
        self._waiting = []


def with_strengths(table: pa.Table, strengths: NDArray[Any]) -> pa.Table:
    """Whole numbers, or real ones where strengths are continuous."""
    return table.set_column(STRENGTH, "strength", pa.array(strengths))


@dataclass(frozen=True)
class ComparisonTable(Sequence[Comparison]):
    table: pa.Table

    @classmethod
    def of(cls, rows: Sequence[Comparison]) -> "ComparisonTable":
        """The same rows as a table."""
        if isinstance(rows, ComparisonTable):
            return rows
        collector = Collector()
        for row in rows:
            collector.add(row)
        table = collector.finish()
        strengths = table["strength"].to_numpy()
        whole = strengths.astype(np.int32)
        return cls(with_strengths(table, whole) if (whole == strengths).all() else table)

    @classmethod
    def read(cls, path: Path) -> "ComparisonTable":
        return cls(pq.read_table(path, memory_map=True))

    def write(self, path: Path) -> None:
        """As a Parquet file; optional columns only where some row has a value."""
        names = [*KEPT, *(name for name in OPTIONAL if self._has_values(name))]
        table = self.table.select(names).combine_chunks()
        pq.write_table(table, path, row_group_size=ROWS_PER_GROUP, compression="zstd")

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[Comparison]:
        for batch in self.table.to_batches(max_chunksize=ROWS_DECODED):
            yield from map(_as_comparison, batch.to_pylist())

    @overload
    def __getitem__(self, index: int) -> Comparison: ...
    @overload
    def __getitem__(self, index: slice) -> list[Comparison]: ...
    def __getitem__(self, index: int | slice) -> Comparison | list[Comparison]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return _as_comparison(self.table.slice(range(len(self))[index], 1).to_pylist()[0])

    def prompt_hashes(self) -> Iterator[str]:
        """Each row's prompt hash."""
        return map(_hash_of, self.column("prompt"))

    def has(self, name: str) -> bool:
        return name in self.table.column_names

    def column(self, name: str) -> Iterator[Any]:
        """One column's values, as Python has them."""
        for chunk in self.table[name].chunks:
            yield from chunk.to_pylist()

    def numbers(self, name: str) -> NDArray[Any]:
        """(n,) a numeric column."""
        return np.array(self.table[name].to_numpy())  # writable, as PyTorch wants it

    def without_ties(self) -> "ComparisonTable":
        compared = self.numbers("strength") > 0
        return self if compared.all() else self.where(compared)

    def where(self, keep: NDArray[np.bool_]) -> "ComparisonTable":
        """(n,) booleans say which of the rows."""
        return ComparisonTable(self.table.filter(pa.array(keep)))

    def _has_values(self, name: str) -> bool:
        return self.has(name) and any(value not in (None, "") for value in self.column(name))


@lru_cache(maxsize=4_096)
def _hash_of(text: str) -> str:
    return prompt_hash(prompt_of(text))


def concatenate(parts: Sequence[ComparisonTable]) -> ComparisonTable:
    """Tables one after the other, without copies; a table may come several times."""
    tables = [part.table for part in parts]
    return ComparisonTable(pa.concat_tables(tables, promote_options="permissive"))  # some strengths may be whole
