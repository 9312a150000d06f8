"""Rows from local files (JSON lines, JSON, CSV, Parquet, Arrow; text may be gzipped) and folders.

Files are streamed, so memory holds the comparisons but never a second copy of a whole file's text.
"""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.csv
import pyarrow.parquet

from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Origin
from unmdpo.data.rows import Row, kind
from unmdpo.errors import DataError, UserError

BUFFER = 1 << 20
BESIDE = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}  # about data, not data
SPLIT_WORDS = {"train": "train", "training": "train", "test": "test"} | dict.fromkeys(
    ("validation", "valid", "val", "dev", "eval"), "validation"
)
Reader = Callable[[Path, BadRows], Iterator[Row]]


def read_strictly(path: Path) -> Iterator[Row]:
    """The rows of a file in which none may be bad."""
    bad = BadRows(0)
    yield from bad.counted(read_file(path, bad))
    bad.settle(str(path))


def read_file(path: Path, bad: BadRows) -> Iterator[Row]:
    """The rows of one file. An empty file is an error, because silently reading nothing is worse."""
    reader = READERS.get(_extension(path))
    if reader is None:
        raise UserError(f"{path}: unknown file type; known: {', '.join(READERS)} (text may be gzipped)")
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

    A file belongs to a split if a whole word in its name, or in the name of a folder above it, means that split
    (`train.jsonl.gz`, `my-eval.jsonl`, `validation/0000.parquet`); the word nearest the end counts. If no file is
    named after a split, all of them are `train`.
    """
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and _extension(path) in READERS
        and path.name not in BESIDE
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not files:
        raise UserError(f"{folder}: no data files in this folder; known types: {', '.join(READERS)}")
    if split is None:
        return files
    named = {path: name for path in files if (name := _split_of(path.relative_to(folder))) is not None}
    splits = named or dict.fromkeys(files, "train")
    chosen = [path for path in files if splits.get(path) == split]
    if not chosen:
        here = ", ".join(sorted({*splits.values()}))
        raise UserError(f"{folder}: no files for the split '{split}'; splits here: {here}")
    return chosen


def _split_of(path: Path) -> str | None:
    words = re.split(r"[^a-z]+", str(path).lower())
    return next((SPLIT_WORDS[word] for word in reversed(words) if word in SPLIT_WORDS), None)


def split_named(name: object) -> str:
    """A split by its usual name: `val` and `valid1` are `validation`."""
    return SPLIT_WORDS.get(str(name).lower().rstrip("0123456789"), str(name))


def _extension(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"]:
        return suffixes[-2] if suffixes[-2:-1] and suffixes[-2] in COMPRESSED else ".gz"
    return suffixes[-1] if suffixes else ""


def _open(path: Path) -> BufferedIOBase:
    """Opens the file with a buffer that fits whole rows: the default buffer is smaller than most rows."""
    if path.suffix.lower() == ".gz":
        return BufferedReader(gzip.open(path, "rb"), BUFFER)
    return BufferedReader(path.open("rb", buffering=0), BUFFER)


def _json_lines(path: Path, bad: BadRows) -> Iterator[Row]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        origin = Origin(str(path), number)
        try:
            yield _row(_decode(origin, line, "utf-8-sig" if number == 1 else "utf-8"), origin)
        except DataError as error:
            bad.unreadable(error)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, 1):
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            path, f"the gzip stream is damaged after row {number} ({error}); download the file again"
        ) from error


def _decode(where: Origin | Path, content: bytes, encoding: str) -> Any:
    try:
        return json.loads(content.decode(encoding))
    except UnicodeDecodeError as error:
        byte = f"byte {error.start} is 0x{error.object[error.start]:02x}"
        raise DataError(where, f"not UTF-8 ({byte}); re-encode the file") from error
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if isinstance(where, Path) else ""
        raise DataError(where, f"malformed JSON at {line}column {error.colno}: {error.msg}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(where, f"malformed JSON: {error}") from error


def _json(path: Path, bad: BadRows) -> Iterator[Row]:
    """A JSON list of objects, or JSON lines, which many datasets store with this extension."""
    text = (line.strip(b"\xef\xbb\xbf \t\r\n") for _, line in _lines(path))
    first = next(filter(None, text), b"")
    if first == b"{":
        raise DataError(path, "starts with an object that spans several lines; use a list, or one object per line")
    if not first.startswith(b"["):
        yield from _json_lines(path, bad)
        return
    whole = b"".join(line for _, line in _lines(path))
    for number, values in enumerate(_decode(path, whole, "utf-8-sig"), 1):
        origin = Origin(str(path), number)
        try:
            yield _row(values, origin)
        except DataError as error:
            bad.unreadable(error)


def _row(values: Any, origin: Origin) -> Row:
    if not isinstance(values, dict):
        raise DataError(origin, f"a row should be a JSON object, not {kind(values)}")
    return Row(values, origin)


def _parquet(path: Path) -> Iterator[pyarrow.RecordBatch]:
    with pyarrow.parquet.ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=512)


def _arrow(path: Path) -> Iterator[pyarrow.RecordBatch]:
    """Both of Arrow's formats: `save_to_disk` of `datasets` writes streams."""
    with pyarrow.memory_map(str(path)) as file:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        if not is_file:
            yield from pyarrow.ipc.open_stream(file)
            return
        whole = pyarrow.ipc.open_file(file)
        yield from (whole.get_batch(i) for i in range(whole.num_record_batches))


def _csv(path: Path, delimiter: str = ",") -> Iterator[pyarrow.RecordBatch]:
    """Columns are numbers if all their values are; texts may span lines."""
    parsing = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with pyarrow.csv.open_csv(
        path, read_options=pyarrow.csv.ReadOptions(block_size=16 << 20), parse_options=parsing
    ) as file:
        yield from file


def _tsv(path: Path) -> Iterator[pyarrow.RecordBatch]:
    return _csv(path, "\t")


def _table(batches: Callable[[Path], Iterator[pyarrow.RecordBatch]], what: str) -> Reader:
    def read(path: Path, _: BadRows) -> Iterator[Row]:
        number = 0
        try:
            for batch in batches(path):
                for start in range(0, batch.num_rows, 512):
                    for values in batch.slice(start, 512).to_pylist():
                        number += 1
                        yield Row(values, Origin(str(path), number))
        except (pyarrow.ArrowInvalid, UnicodeDecodeError, zlib.error, EOFError) as error:
            raise DataError(path, f"not a readable {what} file after row {number}: {error}") from error

    return read


COMPRESSED = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
READERS: dict[str, Reader] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".parquet": _table(_parquet, "Parquet"),
    ".arrow": _table(_arrow, "Arrow"),
    ".csv": _table(_csv, "CSV"),
    ".tsv": _table(_tsv, "CSV"),
}
