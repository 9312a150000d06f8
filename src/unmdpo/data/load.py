"""One door for all data: a path or Hub name in, comparisons out."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from unmdpo.data.comparison import Comparison, Comparisons
from unmdpo.data.files import READERS, data_files, read_file
from unmdpo.data.hub import hub_rows
from unmdpo.data.identity import Prompt
from unmdpo.data.rows import BadRows, Row
from unmdpo.data.sources import SOURCES, Source, SourceSettings, detect
from unmdpo.data.sources.base import HubLayout
from unmdpo.errors import UserError
from unmdpo.nearest import did_you_mean

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
AUTO = "auto"


@dataclass(frozen=True)
class DataRef:
    """Where rows are: a file, a folder or a Hub name, and which part of it."""

    path: str
    split: str | None = "train"  # None: all of them
    revision: str | None = None
    config: str | None = None


def load_comparisons(
    ref: DataRef | str,
    *,
    source: str = AUTO,
    settings: SourceSettings | None = None,
    max_bad_rows: int = 0,
) -> Comparisons:
    """Every comparison of one split, ties apart, bad rows within the allowance skipped."""
    ref = DataRef(ref) if isinstance(ref, str) else ref
    bad = BadRows(max_bad_rows)
    reader, rows = open_source(ref, source, bad, settings)
    parsed = list(_share_prompts(reader.comparisons(rows, bad)))
    if not parsed:
        raise UserError(f"{ref.path}: no comparisons in the split '{ref.split}'")
    return Comparisons(
        rows=tuple(row for row in parsed if row.strength > 0),
        ties=tuple(row for row in parsed if row.strength == 0),
        skipped=tuple(bad.errors),
    )


def open_source(
    ref: DataRef, source: str, bad: BadRows, settings: SourceSettings | None = None
) -> tuple[Source, Iterator[Row]]:
    """The source of the data, named or detected from its first row, and its rows."""
    known = named_source(source, settings) if source != AUTO else None
    rows = read_rows(ref, bad, known)
    if known is None:
        first = next(rows, None)
        if first is None:
            raise UserError(f"{ref.path}: no readable rows")
        known = SOURCES[detect(first)](settings)
        rows = chain([first], rows)
    return known, _of_split(rows, known.split_column, ref.split)


def named_source(name: str, settings: SourceSettings | None = None) -> Source:
    if name not in SOURCES:
        raise UserError(f"unknown source '{name}'; {did_you_mean(name, SOURCES)}")
    return SOURCES[name](settings)


def read_rows(ref: DataRef, bad: BadRows, source: Source | None = None) -> Iterator[Row]:
    """Raw rows of a file, a folder, or a Hub dataset."""
    path = Path(ref.path).expanduser()
    layout = (source.hub if source is not None else None) or HubLayout()
    split = None if source is not None and source.split_column is not None else ref.split
    if path.is_dir():
        part = path / (ref.config or layout.config or layout.data_dir or "")
        files = data_files(part if part.is_dir() else path, split)
        return chain.from_iterable(read_file(file, bad) for file in files)
    if path.exists():
        return read_file(path, bad)
    if not HUB_NAME.fullmatch(ref.path) or path.suffix in {*READERS, ".gz"}:
        raise UserError(f"{ref.path}: no such file or folder")
    return hub_rows(
        ref.path,
        split=split,
        revision=ref.revision,
        config=ref.config or layout.config,
        data_dir=layout.data_dir,
    )


def _of_split(rows: Iterator[Row], column: str | None, split: str | None) -> Iterator[Row]:
    """Where a column names each row's split, only the rows of `split`."""
    for row in rows:
        if column is None or split is None or row.values.get(column, split) == split:
            yield row


def _share_prompts(comparisons: Iterator[Comparison]) -> Iterator[Comparison]:
    """Comparisons of one prompt hold one copy of its text: long prompts repeat often."""
    prompts: dict[str, Prompt] = {}
    for comparison in comparisons:
        shared = prompts.setdefault(comparison.prompt_hash, comparison.prompt)
        yield comparison if shared is comparison.prompt else replace(comparison, prompt=shared)
