"""The one way to load data: a path or Hub name in, comparisons out."""

import contextlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from unmdpo.core.errors import DataError, UnmdpoWarning, UserError, did_you_mean
from unmdpo.core.functions import FunctionName
from unmdpo.data.bad import BadRows, Enough
from unmdpo.data.columns import check_paths, rename_columns, without
from unmdpo.data.comparison import Comparisons, Origin
from unmdpo.data.readers.files import READERS, data_files, files_of_no_split, is_data, read_file, split_named
from unmdpo.data.reading import ALL, AUTO, TRAIN, RowsSettings, rows_of
from unmdpo.data.rows import Row
from unmdpo.data.sources import GONE, SOURCES, Source, SourceSettings, detect
from unmdpo.data.sources.base import HubData
from unmdpo.data.sources.function import source_of
from unmdpo.data.strength import StrengthRule
from unmdpo.data.table import Collector, ComparisonTable, with_strengths

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
LOOKED_AT = 100  # rows, to recognize a source
SPLIT = "split"


def load_comparisons(path: str, **settings: Any) -> Comparisons:
    """All comparisons at a path, with ties separate; the settings are those of a recipe's `data`. Bad rows are
    skipped, up to a number or a share of them.

    >>> data = load_comparisons("pairs.jsonl")
    >>> len(data.rows), len(data.ties), data.source
    (2, 0, 'preference')
    >>> data.rows[0].chosen, data.rows[0].strength
    ('Because of Rayleigh scattering.', 2)
    """
    return load(rows_of(path, **settings))


def load(
    wanted: RowsSettings, *, quantiles: tuple[float, ...] | None = None, listing: Path | None = None, part: str = ""
) -> Comparisons:
    """The comparisons that are wanted. Margins are cut at the `quantiles`, if not at their own; with `listing`, all
    bad rows are written there; every row notes its `part` of a mixture."""
    bad = BadRows(wanted.max_bad_rows)
    opened = open_source(wanted, bad)
    collector = Collector()
    for comparison in opened.source.comparisons(opened.rows, bad):
        collector.add(replace(comparison, part=part) if part else comparison)
    table = collector.finish()
    bad.settle(wanted.place, listing)
    if not table.num_rows:
        raise UserError(_nothing(wanted, bad))
    graded = _cut_strengths(table, opened.source.rule, quantiles)
    everything = ComparisonTable(graded.table)
    return Comparisons(
        rows=everything.where(graded.strengths > 0),
        ties=everything.where(graded.strengths == 0),
        skipped=tuple(bad.errors),
        left_out=dict(bad.left_out),
        read=bad.read,
        source=opened.name,
        thresholds=graded.thresholds,
        quantiles=graded.quantiles,
    )


class CutStrengths(NamedTuple):
    table: pa.Table
    strengths: NDArray[np.int32] | NDArray[np.float64]  # (n,)
    thresholds: tuple[float, ...] | None = None
    quantiles: tuple[float, ...] | None = None


def _cut_strengths(table: pa.Table, rule: StrengthRule, quantiles: tuple[float, ...] | None) -> CutStrengths:
    """Strengths as they were given, or cut from the margins of all rows."""
    strengths = table["strength"].to_numpy().astype(np.float64 if rule.continuous else np.int32)
    margins = table["margin"].to_numpy()  # NaN where there is none
    cut = ~np.isnan(margins)
    if not cut.any():
        return CutStrengths(with_strengths(table, strengths), strengths)
    strengths[cut] = rule.cut(margins[cut], quantiles)
    used = rule.quantiles(margins[cut]) if quantiles is None else quantiles
    return CutStrengths(with_strengths(table, strengths), strengths, rule.thresholds, used)


def _nothing(wanted: RowsSettings, bad: BadRows) -> str:
    why = "".join(f"; {count:,} rows left out: {reason}" for reason, count in bad.left_out.items())
    return f"{wanted.path}: no comparisons" + (f" in the split '{wanted.split}'" if wanted.split != ALL else "") + why


class OpenSource(NamedTuple):
    """A source, named or recognized, and the rows it will read."""

    name: str
    source: Source
    rows: Iterator[Row]


def open_source(wanted: RowsSettings, bad: BadRows) -> OpenSource:
    name = wanted.source if wanted.source != AUTO else recognize(wanted)
    source = source_named(name).configured(SourceSettings(wanted.strength, wanted.pairing))
    if wanted.place.local is not None and wanted.place.local.is_dir():
        _warn_of_left_files(wanted, source)
    rows = read_rows(wanted, bad, source)
    rows = _of_split(rows, _split_column(wanted, source), wanted.split, None if source.split_column else bad)
    if wanted.columns:
        check_paths(first_rows(wanted, source=source), wanted.columns)
        rows = rename_columns(rows, wanted.columns)
    return OpenSource(name, source, bad.counted(without(rows, wanted.ignore)))


def source_named(name: str) -> Source:
    """A source of the table, or one that is a function of the user."""
    if ":" in name:
        return source_of(FunctionName(name))
    if name in GONE:
        raise UserError(f"source '{name}' went: {GONE[name]}")
    if name not in SOURCES:
        raise UserError(f"unknown source '{name}'; {did_you_mean(name, SOURCES)}")
    return SOURCES[name]


def _split_column(wanted: RowsSettings, source: Source) -> str | None:
    """The column that names each row's split: the source's, or in a single file one that names usual splits."""
    local = wanted.place.local
    if source.split_column is not None or wanted.split == ALL or local is None or not local.is_file():
        return source.split_column
    if _has_split_column(wanted):
        return SPLIT
    if wanted.split != TRAIN:
        raise UserError(f"{wanted.path}: a single file without splits, so there is no split '{wanted.split}'")
    return None


def _warn_of_left_files(wanted: RowsSettings, source: Source) -> None:
    assert wanted.place.local is not None
    left = files_of_no_split(_part(wanted.place.local, wanted, source)) if wanted.split == TRAIN else []
    if left:
        names = ", ".join(path.name for path in left[:4]) + (", …" if len(left) > 4 else "")
        warnings.warn(
            f"{wanted.path}: not read, since other files are named after the split 'train': {names}",
            UnmdpoWarning,
            stacklevel=4,
        )


def recognize(wanted: RowsSettings) -> str:
    """The source with this Hub name, or with the columns of the first row that has those of any."""
    columns = wanted.columns
    if columns:  # those of two responses side by side, of scored ones, or of pairs
        if {"response_a", "response_b", "label"} & columns.keys():
            return "sides"
        if {"response", "responses"} & columns.keys():
            return "scored"
        if {"chosen", "rejected"} & columns.keys():
            return "preference"
    for name, source in SOURCES.items():
        if source.hub is not None and source.hub.path == wanted.path and wanted.config in (None, source.hub.config):
            return name
    bad, unrecognized = BadRows(), list[DataError]()
    first = first_rows(wanted, bad)
    for row in rename_columns(first, columns) if columns else first:
        try:
            return detect(row)
        except DataError as error:
            unrecognized.append(error)
    raise [*unrecognized, *bad.errors, UserError(f"{wanted.path}: no readable rows")][0]


def first_rows(wanted: RowsSettings, bad: BadRows | None = None, source: Source | None = None) -> list[Row]:
    """Some rows of the split, or of whatever there is, where a column names the split of each row."""
    bad = bad or BadRows()
    bad.most = LOOKED_AT
    try:
        rows = _peek(read_rows(wanted, bad, source))
    except UserError:
        if wanted.split == ALL:
            raise
        rows = []
    return rows or _peek(read_rows(wanted.of_split(ALL), bad, source))


def _peek(rows: Iterator[Row]) -> list[Row]:
    """Some rows, as long as they are not preceded by nothing but bad ones."""
    found: list[Row] = []
    with contextlib.suppress(Enough):
        found.extend(islice(rows, LOOKED_AT))
    return found


def _has_split_column(wanted: RowsSettings) -> bool:
    """Whether a file has a column that names usual splits, and nothing else."""
    named = [row.values.get(SPLIT) for row in first_rows(wanted.of_split(ALL))]
    words = [word for word in named if word is not None]
    return bool(words) and all(isinstance(word, str) and split_named(word) is not None for word in words)


def read_rows(wanted: RowsSettings, bad: BadRows, source: Source | None = None) -> Iterator[Row]:
    """Raw rows of a file, a folder, or a Hub dataset."""
    layout = (source.hub if source is not None else None) or HubData()
    has_splits = source is None or source.split_column is None  # else one file holds them all
    split = wanted.split if has_splits and wanted.split != ALL else None
    path, local = wanted.place, wanted.place.local
    if local is not None and local.is_dir():
        files = data_files(_part(local, wanted, source), split)
        return chain.from_iterable(read_file(file, bad, empty=len(files) > 1) for file in files)
    if local is not None:
        return read_file(local, bad)
    if not HUB_NAME.fullmatch(path) or Path(path).suffix in {*READERS, ".gz"}:
        raise UserError(f"{path[:200]}: no such file or folder")
    config = wanted.config or layout.config
    return hub_rows(path, split=split, revision=wanted.revision, config=config, data_dir=layout.data_dir)


def _part(folder: Path, wanted: RowsSettings, source: Source | None) -> Path:
    """The folder itself, or the part of a mirrored repository that holds the source's comparisons; of any source, if
    it is not known yet and there are no data files beside that part."""
    if wanted.config is not None:
        if not (folder / wanted.config).is_dir():
            raise UserError(f"{wanted.path}: it has no folder '{wanted.config}'")
        return folder / wanted.config
    if source is not None:
        layouts = [source.hub] if source.hub is not None else []
    else:
        layouts = [known.hub for known in SOURCES.values() if known.hub is not None]
    if any(path.is_file() and is_data(path) for path in folder.iterdir()):
        return folder
    parts = (folder / (known.config or known.data_dir or "") for known in layouts)
    return next((part for part in parts if part.is_dir()), folder)


def _of_split(rows: Iterator[Row], column: str | None, split: str, counted: BadRows | None) -> Iterator[Row]:
    """Only the rows of `split`, if a column names each row's. Rows without a name are for training; `counted` counts
    those of other splits, unless the source is known to hold several."""
    for row in rows:
        word = row.values.get(column) if column is not None else None
        names = (split_named(word) or (word, word)) if isinstance(word, str) else ("train", "train")
        if split == ALL or column is None or split in names or (column not in row.values and counted is None):
            yield row
        elif counted is not None:
            counted.read += 1
            counted.left_out[f"they are of the split '{names[0]}'"] += 1


def hub_rows(
    path: str, *, split: str | None, revision: str | None, config: str | None, data_dir: str | None
) -> Iterator[Row]:
    """The rows of one split of a Hub dataset at a revision, or of all its splits."""
    import datasets  # noqa: PLC0415 - slow to import, and only Hub data needs it

    where = f"{path}@{revision[:12]}" if revision else path
    try:
        dataset = datasets.load_dataset(path, name=config, data_dir=data_dir, revision=revision, split=split)
    except Exception as error:  # the library raises many kinds, all about the dataset or the network
        raise UserError(
            f"{where}: the Hub dataset could not be loaded: {error}\n"
            "Check the name, revision and network (a gated dataset needs `hf auth login`), "
            "or download its files and use their folder instead."
        ) from error
    parts = {split: dataset} if split is not None else dict(dataset)
    for name, part in parts.items():
        for number, values in enumerate(part, 1):
            yield Row(values, Origin(f"{where} [{name}]", number))
