"""The one way to load data: a path or Hub name in, comparisons out."""

import os.path
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from unmdpo.data.comparison import Comparison, Comparisons, Origin
from unmdpo.data.files import READERS, data_files, read_file
from unmdpo.data.identity import Prompt
from unmdpo.data.rows import BadRows, Row
from unmdpo.data.sources import SOURCES, Source, SourceSettings, detect
from unmdpo.data.sources.base import HubData
from unmdpo.errors import DataError, UserError, did_you_mean

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
AUTO = "auto"


@dataclass(frozen=True)
class DataRef:
    """Where the rows are: a file, a folder or a Hub name, and which part of it."""

    path: str
    split: str | None = "train"  # None: all splits
    revision: str | None = None  # of a Hub dataset
    config: str | None = None  # of a Hub dataset, or a subfolder

    @property
    def local(self) -> Path | None:
        """The path on this machine, if it exists."""
        path = Path(os.path.expanduser(self.path))  # noqa: PTH111 - Path.expanduser raises for unknown users
        try:
            return path if path.exists() else None
        except OSError:  # too long, or no permission to look
            return None


def load_comparisons(
    ref: DataRef | str, *, source: str = AUTO, settings: SourceSettings | None = None, max_bad_rows: int = 0
) -> Comparisons:
    """All comparisons of one split, with ties separate and up to `max_bad_rows` bad rows skipped."""
    ref = DataRef(ref) if isinstance(ref, str) else ref
    bad = BadRows(max_bad_rows)
    reader, rows = open_source(ref, source, bad, settings)
    parsed = list(_share_prompts(reader.comparisons(rows, bad)))
    if not parsed:
        raise UserError(f"{ref.path}: no comparisons" + (f" in the split '{ref.split}'" if ref.split else ""))
    return Comparisons(
        rows=tuple(row for row in parsed if row.strength > 0),
        ties=tuple(row for row in parsed if row.strength == 0),
        skipped=tuple(bad.errors),
    )


def open_source(
    ref: DataRef, source: str, bad: BadRows, settings: SourceSettings | None = None
) -> tuple[Source, Iterator[Row]]:
    """The data's source, named or recognized, and its rows."""
    name = source if source != AUTO else _recognize(ref, bad.limit)
    if name not in SOURCES:
        raise UserError(f"unknown source '{name}'; {did_you_mean(name, SOURCES)}")
    reader = SOURCES[name](settings)
    whole_file = reader.split_column is None and ref.local is not None and ref.local.is_file()
    if whole_file and ref.split not in ("train", None):
        raise UserError(f"{ref.path}: a single file without splits, so there is no split '{ref.split}'")
    return reader, _of_split(read_rows(ref, bad, reader), reader.split_column, ref.split)


def _recognize(ref: DataRef, allowed_bad_rows: int) -> str:
    """The source with this Hub name, or with the columns of the first good row."""
    for name, source in SOURCES.items():
        if source.hub is not None and source.hub.path == ref.path:
            return name
    unrecognized: list[DataError] = []
    for row in read_rows(replace(ref, split=None), BadRows(allowed_bad_rows)):
        try:
            return detect(row)
        except DataError as error:
            unrecognized.append(error)
            if len(unrecognized) > allowed_bad_rows:
                break
    raise unrecognized[0] if unrecognized else UserError(f"{ref.path}: no readable rows")


def read_rows(ref: DataRef, bad: BadRows, source: Source | None = None) -> Iterator[Row]:
    """Raw rows of a file, a folder, or a Hub dataset."""
    layout = (source.hub if source is not None else None) or HubData()
    split = None if source is not None and source.split_column is not None else ref.split
    local = ref.local
    if local is not None and local.is_dir():
        files = data_files(_part(local, ref, layout), split)
        return chain.from_iterable(read_file(file, bad) for file in files)
    if local is not None:
        return read_file(local, bad)
    if not HUB_NAME.fullmatch(ref.path) or Path(ref.path).suffix in {*READERS, ".gz"}:
        raise UserError(f"{ref.path[:200]}: no such file or folder")
    return hub_rows(
        ref.path, split=split, revision=ref.revision, config=ref.config or layout.config, data_dir=layout.data_dir
    )


def _part(folder: Path, ref: DataRef, layout: HubData) -> Path:
    """The folder itself, or the part of a mirrored repository that holds the comparisons."""
    if ref.config is not None:
        if not (folder / ref.config).is_dir():
            raise UserError(f"{ref.path}: it has no folder '{ref.config}'")
        return folder / ref.config
    layouts = [layout] if layout.path else [s.hub for s in SOURCES.values() if s.hub is not None]
    parts = (folder / (known.config or known.data_dir or "") for known in layouts)
    return next((part for part in parts if part.is_dir()), folder)


def _of_split(rows: Iterator[Row], column: str | None, split: str | None) -> Iterator[Row]:
    """If a column names each row's split, only the rows of `split`."""
    for row in rows:
        if column is None or split is None or row.values.get(column, split) == split:
            yield row


def _share_prompts(comparisons: Iterator[Comparison]) -> Iterator[Comparison]:
    """Comparisons of one prompt share one copy of its text: long prompts repeat often."""
    prompts: dict[str, Prompt] = {}
    for comparison in comparisons:
        shared = prompts.setdefault(comparison.prompt_hash, comparison.prompt)
        yield comparison if shared is comparison.prompt else replace(comparison, prompt=shared)


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
