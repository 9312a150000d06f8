"""Rows from local files (JSON lines, JSON, CSV, Parquet, Arrow; text may be gzipped) and folders.

Files are streamed, so memory holds the comparisons but never a second copy of a whole file's text.
"""

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

import pyarrow
import pyarrow.parquet

from unmdpo.core.errors import DataError, UserError
from unmdpo.core.files import files_below
from unmdpo.data.bad import BadRows
from unmdpo.data.comparison import Origin
from unmdpo.data.readers.csv_rows import read_csv
from unmdpo.data.rows import Row, kind

BESIDE = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}  # about data, not data
SMALL = 1 << 20  # bytes of a file that is about others
BUFFER_BYTES = 1 << 20
MAX_ROW_BYTES = 1 << 28  # of a line of text
MOST_EMPTY = 1_000_000  # lines in a row
SPLIT_WORDS = {"train": "train", "training": "train", "test": "test"} | dict.fromkeys(
    ("validation", "valid", "val", "dev", "eval"), "validation"
)
PURPOSES = ("prefs", "sft", "gen", "rm", "dpo", "kto", "raw", "filtered")  # for which the same rows are kept again
CACHED = re.compile(r"cache-[0-9a-f]+.*\.arrow")  # what `datasets` keeps of its own work
Reader = Callable[[Path, BadRows], Iterator[Row]]


def read_strictly(path: Path) -> Iterator[Row]:
    """The rows of a file in which none may be bad."""
    bad = BadRows(0)
    yield from bad.counted(read_file(path, bad))
    bad.settle(str(path))


def read_file(path: Path, bad: BadRows, *, empty: bool = False) -> Iterator[Row]:
    """The rows of one file. An empty file is an error, because silently reading nothing is worse, unless it is one of
    several."""
    reader = READERS.get(_extension(path))
    if reader is None:
        raise UserError(f"{path}: unknown file type; known: {', '.join(READERS)} (text may be gzipped)")
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: this is not a file; save its output to a file first")
    found = False
    try:
        for row in reader(path, bad):
            found = True
            yield row
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise UserError(f"{path}: a row of it does not fit into this machine's memory") from error
    if not found and not empty and not bad.errors:
        raise DataError(path, "has no rows")


def is_data(path: Path) -> bool:
    return _extension(path) in READERS and path.name not in BESIDE and not CACHED.match(path.name)


def data_files(folder: Path, split: str | None) -> list[Path]:
    """The data files of one split in a folder, or all of them.

    A file belongs to a split if a whole word in its name, or in the name of a folder above it, means that split
    (`train.jsonl.gz`, `my-eval.jsonl`, `validation/0000.parquet`); the word nearest the end counts. Files without
    such a word are `train` if no others are.
    """
    files = _all_files(folder)
    if split is None:
        return files
    named = {path: name for path in files if (name := _split_of(path.relative_to(folder))) is not None}
    usual = {path: name for path, (_, name) in named.items()}
    if "train" not in usual.values():
        usual = {path: usual.get(path, "train") for path in files}
    chosen = [path for path in files if usual.get(path) == split]
    exact = [path for path, (full, _) in named.items() if full == split]
    if not chosen and not exact:
        here = ", ".join(sorted({*usual.values()}))
        raise UserError(f"{folder}: no files for the split '{split}'; splits here: {here}")
    purposes = sorted(
        {named[path][0] for path in chosen if path in named} & {f"{split}_{purpose}" for purpose in PURPOSES}
    )
    if len(purposes) > 1:
        raise UserError(f"{folder}: several splits are '{split}' here: {', '.join(purposes)}; say which")
    return chosen or exact


def files_of_no_split(folder: Path) -> list[Path]:
    """Files that are left out because others are named after `train`."""
    names = {path: _split_of(path.relative_to(folder)) for path in _all_files(folder)}
    if not any(name is not None and name[1] == "train" for name in names.values()):
        return []
    return [path for path, name in names.items() if name is None]


def _all_files(folder: Path) -> list[Path]:
    files = [path for path in files_below(folder) if is_data(path)]
    if any(path.suffix != ".json" for path in files):
        files = [path for path in files if path.suffix != ".json" or not _is_one_object(path)]
    if not files:
        raise UserError(f"{folder}: no data files in this folder; known types: {', '.join(READERS)}")
    _check_no_file_twice(files)
    return files


def _check_no_file_twice(files: Sequence[Path]) -> None:
    """`train.jsonl` beside `train.jsonl.gz` or `train.parquet` holds the same rows again, which would count twice."""
    seen: dict[Path, Path] = {}
    for path in files:
        stem = path.with_name(path.name.removesuffix(".gz")).with_suffix("")
        if stem in seen:
            raise UserError(f"{path} lies beside {seen[stem].name}, and its rows would count twice: move one away")
        seen[stem] = path


def _is_one_object(path: Path) -> bool:
    """Whether a JSON file beside data is about it, such as a model's or a dataset's configuration."""
    try:
        if path.stat().st_size > SMALL:
            return False
        whole = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(whole, dict)


def _split_of(path: Path) -> tuple[str, str] | None:
    """A file's split by its full name and by its usual one: (`train_prefs`, `train`)."""
    words = reversed(re.split(r"[^a-z0-9_]+", str(path).lower()))
    return next((found for word in words if (found := split_named(word)) is not None), None)


def split_named(word: str) -> tuple[str, str] | None:
    """A split by its full name and its usual one (`valid1` is `validation`), if the word means one: if it begins or
    ends with it. In the middle (`unit_test_generation`) it is a part of what the file is about."""
    parts = [part.rstrip("0123456789") for part in word.lower().split("_")]
    index = next((index for index in (len(parts) - 1, 0) if parts[index] in SPLIT_WORDS), None)
    if index is None:
        return None
    usual = SPLIT_WORDS[parts[index]]
    return "_".join([usual, *(part for part in parts[index + 1 :] if part)]), usual


def _extension(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"]:
        return suffixes[-2] if suffixes[-2:-1] and suffixes[-2] in COMPRESSED else ".gz"
    return suffixes[-1] if suffixes else ""


def open_file(path: Path) -> IO[bytes]:
    """A file of text, gzipped or not, with a buffer that fits whole rows: the default one is smaller than most."""
    if path.suffix.lower() == ".gz":
        return BufferedReader(gzip.GzipFile(path), BUFFER_BYTES)
    return path.open("rb", buffering=BUFFER_BYTES)


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
    number = said = 0  # the last line, and the last that is not empty
    try:
        with open_file(path) as lines:
            # one limit for whatever a line may be: a small gzipped file can unpack to a line without end
            for number, line in enumerate(iter(lambda: lines.readline(MAX_ROW_BYTES), b""), 1):
                if len(line) == MAX_ROW_BYTES:
                    raise DataError(Origin(str(path), number), f"is longer than {MAX_ROW_BYTES:,} bytes")
                said = said if line.isspace() else number
                if number - said > MOST_EMPTY:
                    raise DataError(path, f"has {MOST_EMPTY:,} empty lines after row {said}: is it a text file?")
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            path, f"the gzip stream is damaged after row {number} ({error}); download the file again"
        ) from error


CAREFUL = 1000  # rows of a file whose names are compared, which takes as long as parsing; a tool errs in all


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names differ: of two values of a name, Python would keep the last without a word."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the name '{twice}' stands twice in an object")
    return made


def _decode(where: Origin | Path, content: bytes, encoding: str) -> Any:
    try:
        careful = isinstance(where, Path) or where.row <= CAREFUL
        return json.loads(content.decode(encoding), object_pairs_hook=_once if careful else None)
    except UnicodeDecodeError as error:
        utf16 = error.object[:2] in (b"\xff\xfe", b"\xfe\xff")
        what = "it is UTF-16" if utf16 else f"byte {error.start} is 0x{error.object[error.start]:02x}"
        raise DataError(where, f"not UTF-8 ({what}); re-encode the file") from error
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if isinstance(where, Path) else ""
        raise DataError(where, f"malformed JSON at {line}column {error.colno}: {error.msg}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(where, f"malformed JSON: {error}") from error


def _json(path: Path, bad: BadRows) -> Iterator[Row]:
    """A JSON list of objects, or JSON lines, which many datasets store with this extension."""
    text = (line.strip(b"\xef\xbb\xbf \t\r\n") for _, line in _lines(path))
    first, second = next(filter(None, text), b""), next(filter(None, text), b"")
    if first.startswith(b"{") and second and _is_json(first):
        yield from _json_lines(path, bad)
        return
    if not first.startswith((b"{", b"[")):
        yield from _json_lines(path, bad)
        return
    whole = _decode(path, b"".join(line for _, line in _lines(path)), "utf-8-sig")
    for number, values in enumerate(whole if isinstance(whole, list) else [whole], 1):
        origin = Origin(str(path), number)
        try:
            yield _row(values, origin)
        except DataError as error:
            bad.unreadable(error)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


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


def _csv(path: Path, bad: BadRows) -> Iterator[Row]:
    return read_csv(str(path), lambda: open_file(path), bad, delimiter=None)


def _tsv(path: Path, bad: BadRows) -> Iterator[Row]:
    return read_csv(str(path), lambda: open_file(path), bad, delimiter="\t")


def _check_names(path: Path, names: list[str]) -> None:
    if len({*names}) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise DataError(path, f"the column '{twice}' stands twice: rename one of them")


def _table(batches: Callable[[Path], Iterator[pyarrow.RecordBatch]], what: str) -> Reader:
    def read(path: Path, _: BadRows) -> Iterator[Row]:
        number = 0
        try:
            for batch in batches(path):
                _check_names(path, batch.schema.names)
                for start in range(0, batch.num_rows, 512):
                    for values in batch.slice(start, 512).to_pylist():
                        number += 1
                        yield Row(values, Origin(str(path), number))
        except (pyarrow.ArrowException, UnicodeDecodeError, OverflowError, ValueError) as error:
            raise DataError(path, f"not a readable {what} file after row {number}: {error}") from error

    return read


COMPRESSED = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
READERS: dict[str, Reader] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".parquet": _table(_parquet, "Parquet"),
    ".arrow": _table(_arrow, "Arrow"),
    ".csv": _csv,
    ".tsv": _tsv,
}
