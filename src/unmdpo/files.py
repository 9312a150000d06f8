"""Writing files that appear whole or not at all, reading JSON lines, and checksums.

Everything the package writes goes through `replacing`: the content is written under a temporary name next to its
destination and renamed when it is complete, so a reader never sees half a file and a kill never leaves one behind
under the real name.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PARTIAL = ".partial"  # ending of temporary names


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def temporary(path: Path, owner: object = "shared") -> Path:
    """Where the content of `path` is written first. Processes that write one folder together share it."""
    return path.with_name(f".{path.name[:40]}.{owner}{PARTIAL}")  # names have a longest length


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary path for a file or a folder, which becomes `path` if the block succeeds."""
    aside = temporary(path, os.getpid())
    remove(aside)  # left behind by a process of this number that was killed
    try:
        yield aside
        put_in_place(aside, path)
    except OSError as error:
        remove(aside)
        raise OSError(error.errno, error.strerror, str(path)) from error  # under the name people know
    except BaseException:
        remove(aside)
        raise


def put_in_place(aside: Path, path: Path) -> None:
    """Renames what was written aside; an older folder makes way, an older file is replaced in one step."""
    if path.is_dir():
        shutil.rmtree(path)
    aside.replace(path)


def remove(path: Path) -> None:
    """A file or a folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def remove_leftovers(folder: Path) -> None:
    """Temporary files of a process that was killed while writing."""
    for path in folder.rglob(f".*{PARTIAL}"):
        remove(path)


def sync(folder: Path) -> None:
    """Forces a folder to disk, so that a power cut after the rename cannot lose its content."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def apply_umask(folder: Path) -> None:
    """Some libraries write files that only their owner can read; the umask decides who else may."""
    umask = os.umask(0)
    os.umask(umask)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)


def file_names(folder: Path) -> list[str]:
    """Every file below a folder, relative to it, in order."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    write_text(path, as_json(value))


def write_text(path: Path, text: str) -> None:
    with replacing(path) as aside:
        aside.write_text(text, "utf-8")


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """JSON lines."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Whole JSON lines; a last line without its newline was cut off by a kill and is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]
