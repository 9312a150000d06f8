"""Columns by other names: where the user says which column, or which part of one, holds what."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from unmdpo.data.rows import Row
from unmdpo.errors import did_you_mean

# What can be named when the source is not: the columns that the generic sources read.
TARGETS = (
    "prompt", "system", "chosen", "rejected", "strength", "margin", "score_chosen", "score_rejected", "votes",
    "response", "responses", "score", "scores", "domain", "language",
)  # fmt: skip


def renamed(rows: Iterable[Row], columns: Mapping[str, str]) -> Iterator[Row]:
    """Rows with further columns, each taken from a path such as `answers.0.text`; rows without one lack the column."""
    for row in rows:
        found = {name: value for name, path in columns.items() for value in at(row.values, path)}
        taken = {path for path in columns.values() if path not in columns}
        rest = {name: value for name, value in row.values.items() if name not in taken and name not in columns}
        yield Row(rest | found, row.origin)


def at(values: Any, path: str) -> Iterator[Any]:
    """The value at a dotted path, if there is one. A column may have dots in its own name."""
    if isinstance(values, Mapping) and path in values:
        yield values[path]
        return
    name, dot, rest = path.partition(".")
    if isinstance(values, Mapping) and name in values:
        inner = values[name]
    elif isinstance(values, list) and name.lstrip("-").isdigit() and -len(values) <= int(name) < len(values):
        inner = values[int(name)]
    else:
        return
    if dot:
        yield from at(inner, rest)
    else:
        yield inner


def check_paths(row: Row, columns: Mapping[str, str]) -> None:
    """Raises if a path leads nowhere in a row that should have it."""
    for name, path in columns.items():
        if not any(True for _ in at(row.values, path)):
            first = path.split(".")[0]
            where = did_you_mean(path, row.values) if first not in row.values else f"'{first}' has no such part"
            raise row.error(f"columns.{name}: there is no '{path}'; {where}")
