"""Rows of CSV and TSV files: everything is text, and sources say where they want a number.

Guessing types by column would turn an answer of `007` into a seven. An empty field is a missing value, as spreadsheets
and pandas write it.
"""

import csv
import re
from collections.abc import Callable, Iterator
from io import BufferedReader, TextIOWrapper
from itertools import islice
from typing import Any, Literal

from unmdpo.core.errors import DataError
from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Origin
from unmdpo.data.rows import Row

WHOLE_SHARE = 0.9  # share of lines that are whole rows, if quotes are text
LONGEST_FIELD = 1 << 30
DELIMITERS = ",;\t|"
SAID = re.compile(r"sep=(.)\s*\Z", re.IGNORECASE)  # a first line that spreadsheets write
LOOKED_AT = 1_000  # lines to find out how a file is quoted


def read_csv(path: str, open_file: Callable[[], BufferedReader], bad: BadRows, delimiter: str | None) -> Iterator[Row]:
    """The rows of a file; it is opened twice, to see first how it is written."""
    csv.field_size_limit(LONGEST_FIELD)
    try:
        with TextIOWrapper(open_file(), "utf-8-sig", newline="") as text:
            head = list(islice(text, LOOKED_AT))
        said = SAID.match(head[0]) if head else None
        delimiter = said[1] if said else delimiter or (max(DELIMITERS, key=head[0].count) if head else ",")
        plain = delimiter == "\t" and _quotes_are_text(head)
        quoting: Literal[0, 3] = csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL
        with TextIOWrapper(open_file(), "utf-8-sig", newline="") as text:
            if said:
                next(text)
            yield from _rows(path, csv.reader(text, delimiter=delimiter, quoting=quoting, strict=True), bad)
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


def _quotes_are_text(lines: list[str]) -> bool:
    """Whether some field begins with a quote that does not enclose it, in lines that are all whole rows: tables with
    tabs are often written plainly."""
    whole = [line.count("\t") == lines[0].count("\t") for line in lines if line.strip()]
    if sum(whole) < WHOLE_SHARE * len(whole):
        return False
    fields = (field for line in lines for field in line.rstrip("\r\n").split("\t") if field.startswith('"'))
    return any(re.fullmatch(r'"([^"]|"")*"', field) is None for field in fields)
