"""The one way to load data: a path or Hub name in, comparisons out."""

import contextlib
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from unmdpo.core.errors import DataError, UnmdpoWarning, UserError, did_you_mean
from unmdpo.core.files import expand_home
from unmdpo.core.functions import FunctionName
from unmdpo.data.bad import A_FEW, BadRows, Enough
from unmdpo.data.columns import check_paths, rename_columns, without
from unmdpo.data.comparison import Comparisons, Origin
from unmdpo.data.readers.files import READERS, data_files, files_of_no_split, is_data, read_file, split_named
from unmdpo.data.rows import Row
from unmdpo.data.sources import GONE, SOURCES, Source, SourceSettings, detect
from unmdpo.data.sources.base import HubData
from unmdpo.data.sources.function import source_of
from unmdpo.data.strength import StrengthRule
from unmdpo.data.table import Collector, ComparisonTable, with_strengths

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
AUTO, ALL = "auto", "all"  # a source to be recognized; every split
LOOKED_AT = 100  # rows, to recognize a source
SPLIT = "split"


@dataclass(frozen=True)
class DataRef:
    """Where the rows are: a file, a folder or a Hub name, and which part of it."""

    path: str
    split: str | None = "train"  # None: all splits
    revision: str | None = None  # of a Hub dataset
    config: str | None = None  # of a Hub dataset, or a subfolder

    @classmethod
    def named(cls, path: str, split: str, revision: str | None = None, config: str | None = None) -> "DataRef":
        """As recipes and commands say it: `all` is every split."""
        return cls(path, None if split == ALL else split, revision, config)

    @property
    def local(self) -> Path | None:
        """The path on this machine, if it exists."""
        path = expand_home(self.path)
        try:
            return path if path.exists() else None
        except OSError:  # too long, or no permission to look
            return None


@dataclass(frozen=True)
class Reading:
    """How the rows of one place become comparisons."""

    source: str = AUTO
    settings: SourceSettings = field(default_factory=SourceSettings)
    columns: Mapping[str, str] = field(default_factory=dict)  # what a column holds → its name, or a path into it
    max_bad_rows: int | float = A_FEW
    quantiles: tuple[float, ...] | None = None  # where margins are cut, if not at their own
    ignore: tuple[str, ...] = ()  # columns to leave out, such as pictures


def load_comparisons(
    ref: DataRef | str,
    *,
    source: str = AUTO,
    settings: SourceSettings | None = None,
    columns: Mapping[str, str] | None = None,
    max_bad_rows: int | float = A_FEW,
) -> Comparisons:
    """All comparisons of one split, with ties separate. Bad rows are skipped, up to a number or a share of them.

    >>> data = load_comparisons("pairs.jsonl")
    >>> len(data.rows), len(data.ties), data.source
    (2, 0, 'preference')
    >>> data.rows[0].chosen, data.rows[0].strength
    ('Because of Rayleigh scattering.', 2)
    """
    ref = DataRef(ref) if isinstance(ref, str) else ref
    return load(ref, Reading(source, settings or SourceSettings(), columns or {}, max_bad_rows))


def load(ref: DataRef, reading: Reading, *, listing: Path | None = None, part: str = "") -> Comparisons:
    """The same; with `listing`, all bad rows are written there. Every row notes its `part` of a mixture."""
    bad = BadRows(reading.max_bad_rows)
    opened = open_source(ref, reading, bad)
    collector = Collector()
    for comparison in opened.source.comparisons(opened.rows, bad):
        collector.add(replace(comparison, part=part) if part else comparison)
    table = collector.finish()
    bad.settle(ref.path, listing)
    if not table.num_rows:
        raise UserError(_nothing(ref, bad))
    graded = _cut_strengths(table, opened.source.rule, reading.quantiles)
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


def _nothing(ref: DataRef, bad: BadRows) -> str:
    why = "".join(f"; {count:,} rows left out: {reason}" for reason, count in bad.left_out.items())
    return f"{ref.path}: no comparisons" + (f" in the split '{ref.split}'" if ref.split else "") + why


class OpenSource(NamedTuple):
    """A source, named or recognized, and the rows it will read."""

    name: str
    source: Source
    rows: Iterator[Row]


def open_source(ref: DataRef, reading: Reading, bad: BadRows) -> OpenSource:
    name = reading.source if reading.source != AUTO else recognize(ref, reading.columns)
    source = source_named(name).configured(reading.settings)
    if ref.local is not None and ref.local.is_dir():
        _warn_of_left_files(ref, source)
    rows = read_rows(ref, bad, source)
    rows = _of_split(rows, _split_column(ref, source), ref.split, None if source.split_column else bad)
    if reading.columns:
        check_paths(first_rows(ref, source=source), reading.columns)
        rows = rename_columns(rows, reading.columns)
    return OpenSource(name, source, bad.counted(without(rows, reading.ignore)))


def source_named(name: str) -> Source:
    """A source of the table, or one that is a function of the user."""
    if ":" in name:
        return source_of(FunctionName(name))
    if name in GONE:
        raise UserError(f"source '{name}' went: {GONE[name]}")
    if name not in SOURCES:
        raise UserError(f"unknown source '{name}'; {did_you_mean(name, SOURCES)}")
    return SOURCES[name]


def _split_column(ref: DataRef, source: Source) -> str | None:
    """The column that names each row's split: the source's, or in a single file one that names usual splits."""
    if source.split_column is not None or ref.split is None or ref.local is None or not ref.local.is_file():
        return source.split_column
    if _has_split_column(ref):
        return SPLIT
    if ref.split != "train":
        raise UserError(f"{ref.path}: a single file without splits, so there is no split '{ref.split}'")
    return None


def _warn_of_left_files(ref: DataRef, source: Source) -> None:
    assert ref.local is not None
    left = files_of_no_split(_part(ref.local, ref, source)) if ref.split == "train" else []
    if left:
        names = ", ".join(path.name for path in left[:4]) + (", …" if len(left) > 4 else "")
        warnings.warn(
            f"{ref.path}: not read, since other files are named after the split 'train': {names}",
            UnmdpoWarning,
            stacklevel=4,
        )


def recognize(ref: DataRef, columns: Mapping[str, str] | None = None) -> str:
    """The source with this Hub name, or with the columns of the first row that has those of any."""
    if columns:  # those of two responses side by side, of scored ones, or of pairs
        if {"response_a", "response_b", "label"} & columns.keys():
            return "sides"
        if {"response", "responses"} & columns.keys():
            return "scored"
        if {"chosen", "rejected"} & columns.keys():
            return "preference"
    for name, source in SOURCES.items():
        if source.hub is not None and source.hub.path == ref.path and ref.config in (None, source.hub.config):
            return name
    bad, unrecognized = BadRows(), list[DataError]()
    first = first_rows(ref, bad)
    for row in rename_columns(first, columns) if columns else first:
        try:
            return detect(row)
        except DataError as error:
            unrecognized.append(error)
    raise [*unrecognized, *bad.errors, UserError(f"{ref.path}: no readable rows")][0]


def first_rows(ref: DataRef, bad: BadRows | None = None, source: Source | None = None) -> list[Row]:
    """Some rows of the split, or of whatever there is, where a column names the split of each row."""
    bad = bad or BadRows()
    bad.most = LOOKED_AT
    try:
        rows = _peek(read_rows(ref, bad, source))
    except UserError:
        if ref.split is None:
            raise
        rows = []
    return rows or _peek(read_rows(replace(ref, split=None), bad, source))


def _peek(rows: Iterator[Row]) -> list[Row]:
    """Some rows, as long as they are not preceded by nothing but bad ones."""
    found: list[Row] = []
    with contextlib.suppress(Enough):
        found.extend(islice(rows, LOOKED_AT))
    return found


def _has_split_column(ref: DataRef) -> bool:
    """Whether a file has a column that names usual splits, and nothing else."""
    named = [row.values.get(SPLIT) for row in first_rows(replace(ref, split=None))]
    words = [word for word in named if word is not None]
    return bool(words) and all(isinstance(word, str) and split_named(word) is not None for word in words)


def read_rows(ref: DataRef, bad: BadRows, source: Source | None = None) -> Iterator[Row]:
    """Raw rows of a file, a folder, or a Hub dataset."""
    layout = (source.hub if source is not None else None) or HubData()
    split = None if source is not None and source.split_column is not None else ref.split
    local = ref.local
    if local is not None and local.is_dir():
        files = data_files(_part(local, ref, source), split)
        return chain.from_iterable(read_file(file, bad, empty=len(files) > 1) for file in files)
    if local is not None:
        return read_file(local, bad)
    if not HUB_NAME.fullmatch(ref.path) or Path(ref.path).suffix in {*READERS, ".gz"}:
        raise UserError(f"{ref.path[:200]}: no such file or folder")
    return hub_rows(
        ref.path, split=split, revision=ref.revision, config=ref.config or layout.config, data_dir=layout.data_dir
    )


def _part(folder: Path, ref: DataRef, source: Source | None) -> Path:
    """The folder itself, or the part of a mirrored repository that holds the source's comparisons; of any source, if
    it is not known yet and there are no data files beside that part."""
    if ref.config is not None:
        if not (folder / ref.config).is_dir():
            raise UserError(f"{ref.path}: it has no folder '{ref.config}'")
        return folder / ref.config
    if source is not None:
        layouts = [source.hub] if source.hub is not None else []
    else:
        layouts = [known.hub for known in SOURCES.values() if known.hub is not None]
    if any(path.is_file() and is_data(path) for path in folder.iterdir()):
        return folder
    parts = (folder / (known.config or known.data_dir or "") for known in layouts)
    return next((part for part in parts if part.is_dir()), folder)


def _of_split(rows: Iterator[Row], column: str | None, split: str | None, counted: BadRows | None) -> Iterator[Row]:
    """Only the rows of `split`, if a column names each row's. Rows without a name are for training; `counted` counts
    those of other splits, unless the source is known to hold several."""
    for row in rows:
        word = row.values.get(column) if column is not None else None
        names = (split_named(word) or (word, word)) if isinstance(word, str) else ("train", "train")
        if split is None or column is None or split in names or (column not in row.values and counted is None):
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
