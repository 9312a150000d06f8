"""Comparisons in Arrow: compact in memory, or on disk and mapped, so that data may be larger than memory.

A table is a sequence of comparisons that are made when they are asked for. What needs one column of all rows takes the
column and makes no comparisons at all.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from unmdpo.data.comparison import Comparison, Origin
from unmdpo.data.identity import Message, Prompt, prompt_hash

ROWS, BYTES = 4_096, 8 << 20  # in one batch of a spool
READ = 1_024  # rows decoded at a time

COLUMNS = pa.schema(
    [
        ("prompt", pa.string()),
        ("chosen", pa.string()),
        ("rejected", pa.string()),
        ("strength", pa.int32()),
        ("domain", pa.string()),
        ("language", pa.string()),
        ("votes", pa.list_(pa.int32())),
        ("file", pa.string()),
        ("row", pa.int64()),
    ]
)
LATER = ("tie", "part", "chosen_turns", "rejected_turns", "weight")  # written only where some row has them
NUMBERS = [pa.field("weight", pa.float64()), pa.field("margin", pa.float64())]
STRENGTH = COLUMNS.get_field_index("strength")
SPOOLED = pa.schema([*COLUMNS, *(pa.field(name, pa.string()) for name in LATER[:-1]), *NUMBERS]).set(
    STRENGTH,
    pa.field("strength", pa.float64()),  # until it is known whether all are whole numbers
)


def prompt_text(prompt: Prompt) -> str:
    return json.dumps([message if message.more else message[:2] for message in prompt], ensure_ascii=False)


@lru_cache(maxsize=4_096)
def prompt_of(text: str) -> Prompt:
    """Rows of one prompt share one copy of it, as long as they are near each other."""
    return tuple(Message(*turn) for turn in json.loads(text))


def _comparison(values: dict[str, Any]) -> Comparison:
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


class Spool:
    """Collects comparisons, and their margins where the strength is still to be cut: in memory, or in a file."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._waiting: list[dict[str, Any]] = []
        self._size = 0
        self._batches: list[pa.RecordBatch] = []
        self._file = None if path is None else pa.ipc.new_file(str(path), SPOOLED)

    def add(self, row: Comparison) -> None:
        text = prompt_text(row.prompt)
        self._size += len(text) + len(row.chosen) + len(row.rejected)
        self._waiting.append(
            {
                "prompt": text,
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
        )
        if len(self._waiting) == ROWS or self._size > BYTES:
            self._flush()

    def _flush(self) -> None:
        batch = pa.RecordBatch.from_pylist(self._waiting, schema=SPOOLED)
        self._waiting, self._size = [], 0
        if self._file is None:
            self._batches.append(batch)
        else:
            self._file.write_batch(batch)

    def finish(self) -> pa.Table:
        """All rows; from a file, they are mapped and not read."""
        self._flush()
        if self._file is None or self.path is None:
            return pa.Table.from_batches(self._batches, schema=SPOOLED)
        self._file.close()
        return pa.ipc.open_file(pa.memory_map(str(self.path))).read_all()

    def __enter__(self) -> "Spool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._file is not None:
            self._file.close()


def with_strengths(table: pa.Table, strengths: NDArray[Any]) -> pa.Table:
    """Whole numbers, or real ones where strengths are continuous."""
    return table.set_column(STRENGTH, "strength", pa.array(strengths))


@dataclass(frozen=True)
class ComparisonTable(Sequence[Comparison]):
    """Some rows of an Arrow table, or of a Parquet file, in order."""

    chunks: "_Memory | _File"
    kept: NDArray[np.int64] | None = None  # numbers of rows, in increasing order; None: all

    @classmethod
    def of(cls, rows: Sequence[Comparison]) -> "ComparisonTable":
        """The same rows as a table."""
        if isinstance(rows, ComparisonTable):
            return rows
        spool = Spool()
        for row in rows:
            spool.add(row)
        table = spool.finish()
        strengths = table["strength"].to_numpy()
        whole = strengths.astype(np.int32)
        return cls(_Memory(with_strengths(table, whole) if (whole == strengths).all() else table))

    @classmethod
    def view(cls, table: pa.Table, kept: NDArray[np.bool_]) -> "ComparisonTable":
        return cls(_Memory(table), np.flatnonzero(kept))

    @classmethod
    def read(cls, path: Path) -> "ComparisonTable":
        """The rows of a Parquet file, which stay there."""
        return cls(_File(path))

    def __len__(self) -> int:
        return self.chunks.rows if self.kept is None else len(self.kept)

    def __iter__(self) -> Iterator[Comparison]:
        for batch in self.batches():
            yield from map(_comparison, batch.to_pylist())

    @overload
    def __getitem__(self, place: int) -> Comparison: ...
    @overload
    def __getitem__(self, place: slice) -> list[Comparison]: ...
    def __getitem__(self, place: int | slice) -> Comparison | list[Comparison]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        number = range(len(self))[place]
        return _comparison(self.chunks.row(number if self.kept is None else int(self.kept[number])))

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The kept rows, a few at a time."""
        start = 0
        for batch in self.chunks.batches(columns):
            end = start + batch.num_rows
            if self.kept is None:
                yield batch
            else:
                low, high = np.searchsorted(self.kept, (start, end))
                if low < high:
                    yield batch.take(pa.array(self.kept[low:high] - start))
            start = end

    def prompt_hashes(self) -> Iterator[str]:
        """Each row's prompt hash."""
        return map(_hash_of, self.column("prompt"))

    def column(self, name: str) -> Iterator[Any]:
        """One column's values, as Python has them."""
        for batch in self.batches([name]):
            yield from batch.column(0).to_pylist()

    def numbers(self, name: str) -> NDArray[Any]:
        """(n,) a numeric column."""
        parts = [batch.column(0).to_numpy(zero_copy_only=False) for batch in self.batches([name])]
        return np.concatenate(parts) if parts else np.empty(0, dtype=SPOOLED.field(name).type.to_pandas_dtype())

    def where(self, keep: NDArray[np.bool_]) -> "ComparisonTable":
        """(n,) booleans say which of the rows."""
        numbers = np.arange(len(self)) if self.kept is None else self.kept
        return ComparisonTable(self.chunks, numbers[keep])


@lru_cache(maxsize=4_096)
def _hash_of(text: str) -> str:
    return prompt_hash(prompt_of(text))


def concatenate(parts: Sequence[ComparisonTable]) -> ComparisonTable:
    """Tables one after the other, without copies; a table may come several times."""
    tables = [part.chunks.table for part in parts if isinstance(part.chunks, _Memory)]
    assert len(tables) == len(parts)
    starts = np.cumsum([0, *(table.num_rows for table in tables)])
    kept = [
        start + (np.arange(len(part)) if part.kept is None else part.kept)
        for start, part in zip(starts[:-1], parts, strict=True)
    ]
    joined = pa.concat_tables(tables, promote_options="permissive")  # some strengths may be whole, others real
    return ComparisonTable(_Memory(joined), np.concatenate(kept))


class _Memory:
    """An Arrow table, in memory or mapped."""

    def __init__(self, table: pa.Table) -> None:
        self.table, self.rows, self.names = table, table.num_rows, table.column_names

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        table = self.table if columns is None else self.table.select(list(columns))
        yield from table.to_batches(max_chunksize=READ)

    def row(self, number: int) -> dict[str, Any]:
        return dict(self.table.slice(number, 1).to_pylist()[0])


class _File:
    """A Parquet file; single rows come from the row group read last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with pq.ParquetFile(path) as file:
            self.groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            self.names = file.schema_arrow.names
        self.rows = sum(self.groups)
        self._group: tuple[int, pa.Table] | None = None

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(self.path, memory_map=True) as file:
            wanted = None if columns is None else list(columns)
            yield from file.iter_batches(batch_size=READ, columns=wanted)

    def row(self, number: int) -> dict[str, Any]:
        group = 0
        while number >= self.groups[group]:
            number -= self.groups[group]
            group += 1
        if self._group is None or self._group[0] != group:
            with pq.ParquetFile(self.path, memory_map=True) as file:
                self._group = group, file.read_row_group(group)
        return dict(self._group[1].slice(number, 1).to_pylist()[0])
