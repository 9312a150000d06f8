"""What each column of some rows is used for: found by reading them without it, or with other values in it."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Comparison
from unmdpo.data.rows import Row
from unmdpo.data.sources import Source

MARK = " unmdpo"  # added to a text to see where it comes out
PARTS: dict[str, Callable[[Comparison], Any]] = {
    "the prompt": lambda row: row.prompt,
    "the responses": lambda row: row.pair,
    "which is better": lambda row: row.chosen == row.pair[0],
    "the strength": lambda row: row.strength,
    "votes": lambda row: row.votes,
    "the domain": lambda row: row.domain,
    "the language": lambda row: row.language,
    "the weight": lambda row: row.weight,
}


def uses(source: Source, rows: Sequence[Row]) -> dict[str, str]:
    """Column → what it is read for; empty if it is left alone."""
    columns = list(dict.fromkeys(name for row in rows for name in row.values))
    plain = _read(source, rows)
    return {name: _use(source, rows, plain, name) for name in columns}


def _use(source: Source, rows: Sequence[Row], plain: Sequence[Comparison], name: str) -> str:
    less = _read(source, [row.only([other for other in row.values if other != name]) for row in rows])
    if less and len(less) == len(plain):
        return _difference(plain, less)
    values = [row.values.get(name) for row in rows]
    for others in ([_marked(value) for value in values], [*values[1:], *values[:1]]):
        changed = [row.with_values({**row.values, name: value}) for row, value in zip(rows, others, strict=True)]
        found = _difference(plain, _read(source, changed))
        if found:
            return found
    return "what is compared"


def _read(source: Source, rows: Sequence[Row]) -> list[Comparison]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnmdpoWarning)
        try:
            return source.all_of(filter(source.fits, rows), BadRows())
        except UserError:
            return []


def _difference(before: Sequence[Comparison], after: Sequence[Comparison]) -> str:
    """Which parts differ; nothing if other rows are read."""
    if len(before) != len(after):
        return ""
    pairs = list(zip(before, after, strict=True))
    changed = [words for words, part in PARTS.items() if any(part(a) != part(b) for a, b in pairs)]
    if "the responses" in changed and "which is better" in changed:
        changed.remove("which is better")  # by the order of other texts
    return " and ".join(changed)


def _marked(value: Any) -> Any:
    """The same, with every text changed."""
    if isinstance(value, str):
        return value + MARK
    if isinstance(value, Mapping):
        return {name: part if name in ("role", "from") else _marked(part) for name, part in value.items()}
    return [_marked(part) for part in value] if isinstance(value, list) else value
