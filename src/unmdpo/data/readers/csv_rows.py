"""Rows of CSV and TSV files: everything is text, and sources say where they want a number.

Guessing types by column would turn an answer of `007` into a seven. An empty field is a missing value, as spreadsheets
and pandas write it.
"""

import csv
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from itertools import chain
from typing import IO, Any

from unmdpo.core.errors import DataError
from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Origin
from unmdpo.data.rows import Row

MAX_FIELD_BYTES = 1 << 30
DELIMITERS = ",;\t|"


def read_csv(path: str, open_file: Callable[[], IO[bytes]], bad: BadRows, delimiter: str | None) -> Iterator[Row]:
    """The rows of a file; without a delimiter, the one that its header has most of."""
    csv.field_size_limit(MAX_FIELD_BYTES)
    try:
        with TextIOWrapper(open_file(), "utf-8-sig", newline="") as text:
            header = text.readline()
            delimiter = delimiter or max(DELIMITERS, key=header.count)
            lines = chain([header] if header else [], text)
            yield from _rows(path, csv.reader(lines, delimiter=delimiter, strict=True), bad)
    except UnicodeDecodeError as error:
        utf16 = error.object[:2] in (b"\xff\xfe", b"\xfe\xff")
        kind = "UTF-16" if utf16 else f"byte 0x{error.object[error.start]:02x}"
        raise DataError(path, f"not UTF-8 ({kind}); save it as UTF-8") from error


def _rows(path: str, records: Any, bad: BadRows) -> Iterator[Row]:
    names: list[str] | None = None
    number = 0
    while True:
        before = records.line_num
        try:
            record = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            for _ in range(max(1, records.line_num - before)):  # a quote that does not close takes many lines with it
                number += 1
                bad.unreadable(DataError(Origin(path, number), f"not readable as CSV: {error}"))
            continue
        if not record:
            continue
        if names is None:
            names = record
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise DataError(path, f"the header names '{twice[0]}' twice")
            continue
        number += 1
        origin = Origin(path, number)
        if len(record) != len(names):
            bad.unreadable(DataError(origin, f"has {len(record)} fields, but the header has {len(names)}"))
            continue
        values = {name: field or None for name, field in zip(names, record, strict=True)}
        yield Row(values, origin, untyped=True)
