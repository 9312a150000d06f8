"""Rows from local files: `.jsonl`, `.json`, `.parquet`, the first two also gzipped; and folders.

Reading is a stream, so that memory holds comparisons and never whole files of text twice.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from unmdpo.data.comparison import Origin
from unmdpo.data.rows import BadRows, Row, kind
from unmdpo.errors import DataError, UserError

BUFFER = 1 << 20
SPLITS = ("train", "validation", "test")
Reader = Callable[[Path, BadRows], Iterator[Row]]


def read_file(path: Path, bad: BadRows) -> Iterator[Row]:
    """The rows of one file; an empty file is an error, because a silent nothing is worse."""
    reader = READERS.get(_extension(path))
    if reader is None:
        raise UserError(f"{path}: unknown kind of file; known: {', '.join(READERS)} (or .gz of JSON)")
    empty = True
    try:
        for row in reader(path, bad):
            empty = False
            yield row
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    if empty and not bad.errors:
        raise DataError(path, "has no rows")


def data_files(folder: Path, split: str | None) -> list[Path]:
    """The data files of one split in a folder, or all of them.

    A file belongs to a split when its name starts with the split's name (`train.jsonl.gz`,
    `validation-00000-of-00001.parquet`); where no file is named after a split, all are `train`.
    """
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and _extension(path) in READERS
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not files:
        raise UserError(f"{folder}: no data files in this folder; known: {', '.join(READERS)}")
    if split is None:
        return files
    named = {path: name for path in files for name in SPLITS if path.name.startswith(name)}
    if not named:
        chosen = files if split == "train" else []
    else:
        chosen = [path for path in files if named.get(path) == split]
    if not chosen:
        found = ", ".join(sorted({*named.values()} or {"train"}))
        raise UserError(f"{folder}: no files of the split '{split}'; splits here: {found}")
    return chosen


def _extension(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"]:
        return suffixes[-2] if suffixes[-2:-1] in ([".jsonl"], [".json"]) else ".gz"
    return suffixes[-1] if suffixes else ""


def _open(path: Path) -> BufferedIOBase:
    """Bytes through a buffer that holds whole rows: the default one is smaller than most."""
    if path.suffix.lower() == ".gz":
        return BufferedReader(gzip.open(path, "rb"), BUFFER)
    return BufferedReader(path.open("rb", buffering=0), BUFFER)


def _json_lines(path: Path, bad: BadRows) -> Iterator[Row]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        origin = Origin(str(path), number)
        try:
            yield _row(_decode(origin, line), origin)
        except DataError as error:
            bad.add(error)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, 1):
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            path, f"the gzip stream is damaged after row {number} ({error}); fetch the file again"
        ) from error


def _decode(origin: Origin, line: bytes) -> Any:
    try:
        text = line.decode("utf-8-sig" if origin.row == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            origin,
            f"not UTF-8 (byte {error.start} is 0x{line[error.start]:02x}); re-encode the file",
        ) from error
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        problem = f"malformed JSON at column {error.colno}: {error.msg}"
        raise DataError(origin, problem) from error
    except (RecursionError, ValueError) as error:
        raise DataError(origin, f"malformed JSON: {error}") from error


def _json(path: Path, bad: BadRows) -> Iterator[Row]:
    """A JSON list of objects; or JSON lines, which many data sets keep under this ending."""
    text = (line.lstrip(b"\xef\xbb\xbf \t\r\n") for _, line in _lines(path))
    if not next(filter(None, text), b"").startswith(b"["):
        yield from _json_lines(path, bad)
        return
    whole = b"".join(line for _, line in _lines(path))
    for number, values in enumerate(_decode(Origin(str(path), 1), whole), 1):
        origin = Origin(str(path), number)
        try:
            yield _row(values, origin)
        except DataError as error:
            bad.add(error)


def _row(values: Any, origin: Origin) -> Row:
    if not isinstance(values, dict):
        raise DataError(origin, f"a row should be a JSON object, not {kind(values)}")
    return Row(values, origin)


def _parquet(path: Path, _: BadRows) -> Iterator[Row]:
    try:
        number = 0
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=512):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(values, Origin(str(path), number))
    except pyarrow.ArrowInvalid as error:
        raise DataError(path, f"not a readable Parquet file: {error}") from error


READERS: dict[str, Reader] = {".jsonl": _json_lines, ".json": _json, ".parquet": _parquet}
