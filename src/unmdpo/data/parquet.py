"""Comparisons as a Parquet file, in groups that fit in memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from unmdpo.data.comparison import Comparison
from unmdpo.data.table import COLUMNS, LATER, READ, SPOOLED, ComparisonTable

GROUP_ROWS, GROUP_BYTES = 1 << 20, 512 << 20  # in one row group


def write_parquet(path: Path, rows: Sequence[Comparison]) -> None:
    """Writes rows in groups that fit in memory; columns that came later only where some row has a value."""
    table = ComparisonTable.of(rows)
    names = [*COLUMNS.names, *(name for name in LATER if _has(table, name))]
    strength = next((batch.schema.field(0) for batch in table.batches(["strength"])), COLUMNS.field("strength"))
    schema = pa.schema([strength if name == "strength" else SPOOLED.field(name) for name in names])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in _groups(table, names):
            writer.write_table(pa.Table.from_batches(group, schema=schema).combine_chunks(), GROUP_ROWS)


def _has(table: ComparisonTable, name: str) -> bool:
    if name not in table.chunks.names:
        return False
    return any(value not in (None, "") for value in table.column(name))


def _groups(table: ComparisonTable, names: Sequence[str]) -> Iterator[list[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in table.batches(names):
        group.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if size > GROUP_BYTES or rows > GROUP_ROWS - READ:
            yield group
            group, rows, size = [], 0, 0
    if group or not len(table):
        yield group
