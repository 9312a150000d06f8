"""Columns by other names: where the user says which column, or which part of one, holds what."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from unmdpo.core.errors import UserError, did_you_mean
from unmdpo.data.rows import Row
from unmdpo.data.strength import DIFFERENCES, RATINGS, STRENGTH_COLUMNS

GRADES = {*STRENGTH_COLUMNS, "margin", RATINGS, *(name for pair in DIFFERENCES for name in pair)}

NOT_TEXT = frozenset({"image", "images", "video", "videos", "audio", "audios"})

# What can be named when the source is not: the columns that the generic sources read.
TARGETS = (
    "prompt", "system", "chosen", "rejected", "strength", "margin", "score_chosen", "score_rejected", "votes",
    "response", "responses", "score", "scores", "domain", "language", "response_a", "response_b", "label",
    "weight",
)  # fmt: skip


def rename_columns(rows: Iterable[Row], columns: Mapping[str, str]) -> Iterator[Row]:
    """Rows with further columns, each taken from a path such as `answers.0.text`; rows without one lack the column.
    What says the strength by another name gives way to what the user names. A prompt in several columns is their texts
    one after another."""
    named = {part for path in columns.values() for part in (path, *parts_of(path))}
    replaced = {path for path in named if path not in columns} | columns.keys()
    if columns.keys() & GRADES:
        replaced |= GRADES
    several = len(parts_of(columns.get("prompt", ""))) > 1
    for row in rows:
        found = {name: value for name, path in columns.items() for value in at(row.values, path)}
        parts = found.get("prompt")
        if several and isinstance(parts, list) and all(isinstance(part, str) for part in parts):
            found["prompt"] = "\n\n".join(parts)
        rest = {name: value for name, value in row.values.items() if name not in replaced}
        yield row.with_values(rest | found)


def without(rows: Iterable[Row], ignored: Collection[str]) -> Iterator[Row]:
    """Rows without the columns that the user leaves out; what is not text must be among them."""
    for row in rows:
        beside = () if NOT_TEXT.isdisjoint(row.values) else sorted(NOT_TEXT & row.values.keys())
        found = next((name for name in beside if row.values[name] and name not in ignored), None)
        if found is not None:
            raise UserError(
                f"{row.origin}: '{found}' is not read, because only text is; if prompts make sense without it, leave "
                f"it out with data.ignore: [{found}] in a recipe, or --ignore {found}"
            )
        yield row.with_values({n: v for n, v in row.values.items() if n not in ignored}) if ignored else row


def at(values: Any, path: str) -> Iterator[Any]:
    """The value at a dotted path, if there is one; the list of those at several, such as annotators' columns, that are
    not empty. A column may have dots and commas in its own name."""
    if isinstance(values, Mapping) and path in values:
        yield values[path]
        return
    if "," in path:
        several = [value for part in parts_of(path) for value in at(values, part) if value not in (None, "")]
        yield from [several] if several else []
        return
    name, dot, rest = path.partition(".")
    if isinstance(values, Mapping) and name in values:
        inner = values[name]
    elif isinstance(values, list) and re.fullmatch(r"-?[0-9]+", name) and -len(values) <= int(name) < len(values):
        inner = values[int(name)]
    else:
        return
    if dot:
        yield from at(inner, rest)
    else:
        yield inner


def parts_of(path: str) -> list[str]:
    """The paths that are listed in one."""
    return [part.strip() for part in path.split(",")]


def check_paths(rows: Sequence[Row], columns: Mapping[str, str]) -> None:
    """Raises if a path leads nowhere in any of the rows."""
    named = {(name, part) for name, path in columns.items() for part in parts_of(path) if path not in rows[0].values}
    for name, path in sorted(named) if rows else ():
        if not any(True for row in rows for _ in at(row.values, path)):
            first = path.split(".")[0]
            known = rows[0].values
            where = did_you_mean(path, known) if first not in known else f"'{first}' has no such part"
            raise rows[0].error(f"columns.{name}: there is no '{path}'; {where}")
