"""Atomic file writes, JSON lines, and checksums.

Everything the package writes goes through `replacing`: content is written under a temporary name next to its
destination and renamed once complete. So a reader never sees half a file, and a killed process never leaves one under
the real name.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from unmdpo.core.errors import UserError

STORE = {"artifacts", "locks", "runs"}  # folders by which one of our stores is known
PARTIAL = ".partial"  # suffix of temporary names
SEAL = "seal"
SMALL = 64 * 2**20  # bytes


def expand_home(path: str | Path) -> Path:
    """With the home folder for ~. A user who is unknown leaves it as it is, where pathlib raises."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def temporary(path: Path, owner: object = "shared") -> Path:
    """The temporary path for `path`. Processes that write one folder together share it."""
    return path.with_name(f".{path.name[:40]}.{owner}{PARTIAL}")  # file names have a maximum length


def check_outside_stores(path: Path) -> None:
    """Refuses a place among a store's results and work: whatever is added to a finished result damages it."""
    place = path.resolve()
    for folder in place.parents:
        inside = place.relative_to(folder).parts[0] in ("artifacts", "work")
        if inside and all((folder / name).is_dir() for name in STORE):
            raise UserError(f"{path}: lies in the store {folder}, where only runs may write; choose another place")


def check_new(folder: Path) -> None:
    """Refuses a place where something is; an empty folder may be filled."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: already exists; name a new folder")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path for a file or folder, which becomes `path` if the block succeeds."""
    aside = temporary(path, os.getpid())
    remove(aside)  # left behind by a killed process with the same ID
    try:
        yield aside
        put_in_place(aside, path)
    except OSError as error:
        remove(aside)
        raise OSError(error.errno, error.strerror, str(path)) from error  # report the real path, not the temporary one
    except BaseException:
        remove(aside)
        raise


def put_in_place(aside: Path, path: Path) -> None:
    """Renames the temporary path. A folder replaces a folder, and a file a file, in one step; a file takes no other
    thing's place."""
    if aside.is_dir() and path.is_dir():
        shutil.rmtree(path)
    elif path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, "something that is no file is there already", str(path))
    aside.replace(path)


def remove(path: Path) -> None:
    """Removes a file, folder or link, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def remove_leftovers(folder: Path) -> None:
    """Removes temporary files of a process that was killed while writing."""
    for path in folder.rglob(f".*{PARTIAL}"):
        remove(path)


def sync(folder: Path) -> None:
    """Flushes a folder to disk, so a power cut after the rename cannot lose its content."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def apply_umask(folder: Path) -> None:
    """Sets permissions by the umask, since some libraries write files that only their owner can read."""
    umask = os.umask(0)
    os.umask(umask)
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():  # whatever it points to is not ours
            path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder, sorted, linked folders included; without hidden ones, those that Python keeps,
    and stores of ours, whose files are results. A link that leads nowhere is an error: something is missing."""
    found, entered = [], set[str]()
    for parent, folders, names in os.walk(folder, followlinks=True):
        if (place := os.path.realpath(parent)) in entered:  # links may go round in circles
            folders.clear()
            continue
        entered.add(place)
        if {*folders} >= STORE:
            folders.clear()  # and so is not entered
            continue
        folders[:] = [name for name in sorted(folders) if not name.startswith(".") and name != "__pycache__"]
        found += [Path(parent) / name for name in names if not name.startswith(".")]
    for path in found:
        if path.is_symlink() and not path.exists():
            raise UserError(f"{path} is a link to {path.readlink()}, which does not exist: is a download complete?")
    return sorted(path for path in found if path.is_file())


def file_names(folder: Path) -> list[str]:
    """Every file below a folder, relative to it, sorted."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"


def with_seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same with a checksum of itself added."""
    rest = {name: value for name, value in content.items() if name != SEAL}
    return rest | {SEAL: hashlib.sha256(as_json(rest).encode()).hexdigest()}


def read_small(path: Path) -> str:
    """The text of a file that should be small. One that is missing is an OSError; what is no such file is a
    ValueError: reading a pipe would wait for ever."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path}: cannot be read: this is not a file")
    if status.st_size > SMALL:
        raise ValueError(f"{path}: {status.st_size:,} bytes are too many for such a file")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start})") from error


def read_small_json(path: Path) -> Any:
    try:
        return json.loads(read_small(path))
    except RecursionError as error:
        raise ValueError(f"{path}: this JSON is nested too deeply") from error


def read_sealed(path: Path) -> dict[str, Any] | None:
    """What `write_json` wrote of something sealed; None if it is missing or anything else. Other disk errors are
    raised."""
    try:
        text = read_small(path)
        content = json.loads(text)
        intact = isinstance(content, dict) and text == as_json(with_seal(content))
    except (FileNotFoundError, ValueError, RecursionError):  # or it contains values that we never write
        return None
    return content if intact else None


def write_json(path: Path, value: Any) -> None:
    write_text(path, as_json(value))


def write_text(path: Path, text: str) -> None:
    with replacing(path) as aside:
        aside.write_text(text, "utf-8")


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes JSON lines."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Reads complete JSON lines; a last line without a newline was cut off by a kill and is skipped."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]
