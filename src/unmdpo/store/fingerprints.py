"""Checksums of exactly the local files that are read, so a changed file is not mistaken for the one a stage used, and
nothing is redone because of another file next to it. Where files lie does not matter, only their content."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from unmdpo.core.errors import UserError
from unmdpo.core.files import expand_home, files_below, read_small_json, sha256, write_json
from unmdpo.data.readers.files import data_files
from unmdpo.store.store import Store

# What Transformers may read of a model's folder. Everything else there, such as a model card, changes no result.
OF_MODELS = {".json", ".safetensors", ".bin", ".model", ".txt", ".tiktoken", ".vocab", ".jinja", ".py"}
NOT_OF_MODELS = {"trainer_state.json", "training_args.bin", "optimizer.bin", "scheduler.bin", "rng_state.bin"}
Sums = dict[str, str]  # name → SHA-256
_SEEN: dict[str, list[int]] = {}  # what this process saw of each file when it took the checksum, or believed it


class Fingerprints:
    """Remembered for as long as a file's size, times and place on the disk stay the same, because models are large. A
    file whose content was changed under its old date has another change time. With `anew`, what was remembered before
    is not relied on."""

    def __init__(self, store: Store, *, anew: bool = False) -> None:
        self._file = store.root / "fingerprints.json"
        self._known = _remembered(self._file)
        self._doubted = {*self._known} if anew else set[str]()
        self._changed = False

    def of(self, path: str) -> Sums | None:
        """Of a file, or all files of a folder; None for a name on the Hub."""
        return self._of(path, files_below)

    def of_data(self, path: str) -> Sums | None:
        return self._of(path, lambda folder: data_files(folder, None))

    def of_model(self, path: str) -> Sums | None:
        def is_read(file: Path) -> bool:
            return file.suffix in OF_MODELS and file.name not in NOT_OF_MODELS

        return self._of(path, lambda folder: filter(is_read, files_below(folder)))

    def save(self) -> None:
        """Remembers what was hashed, unless the store is not there yet or read-only."""
        folder = self._file.parent
        if self._changed and folder.is_dir() and os.access(folder, os.W_OK):
            write_json(self._file, self._known)

    def _of(self, path: str, read: Callable[[Path], Iterable[Path]]) -> Sums | None:
        place = expand_home(path)
        if place.is_file():
            return {place.name: self._checksum(place)}
        if place.is_dir():
            return {file.relative_to(place).as_posix(): self._checksum(file) for file in read(place)}
        return None

    def _checksum(self, path: Path) -> str:
        name, seen = str(path.resolve()), _seen(path)
        known = None if name in self._doubted else self._known.get(name)
        if not isinstance(known, dict) or known.get("seen") != seen or not isinstance(known.get("sha256"), str):
            known = self._known[name] = {"seen": seen, "sha256": _read_whole(path)}
            self._doubted.discard(name)
            self._changed = True
        _SEEN[name] = seen
        return str(known["sha256"])


def _seen(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def written_to(settings: Any) -> Path | None:
    """A local file of a stage's settings that was written to since its checksum was taken; also if its content was
    put back, since nobody knows what was read meanwhile."""
    for path in _local_files(settings):
        before = _SEEN.get(str(path.resolve()))
        if before is not None and (not path.is_file() or _seen(path) != before):
            return path
    return None


def _local_files(settings: Any) -> Iterator[Path]:
    """The files that stand in every `files` of the settings: those of a model beside its path, others by theirs."""
    if isinstance(settings, dict) and isinstance(settings.get("files"), dict):
        for name, sums in settings["files"].items():
            place, names = (name, sums) if isinstance(sums, dict) else (settings.get("path"), [name])
            if sums is not None and isinstance(place, str):
                root = expand_home(place)
                yield from (root / each if root.is_dir() else root for each in names)
    parts = settings.values() if isinstance(settings, dict) else settings if isinstance(settings, list) else ()
    for part in parts:
        yield from _local_files(part)


def _read_whole(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _remembered(path: Path) -> dict[str, Any]:
    """Nothing, if the file is missing or damaged."""
    try:
        known = read_small_json(path)
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def by_content(settings: Any) -> Any:
    """The same settings with a digest in place of every path whose checksums are known."""
    return _renamed(settings, _places(settings))


def _places(settings: Any) -> dict[str, str]:
    """Path → digest, from every `files` of the settings: those of a model stand beside its path, others by theirs."""
    found = dict[str, str]()
    if isinstance(settings, dict):
        files = settings.get("files")
        for path, sums in files.items() if isinstance(files, dict) else ():
            if isinstance(sums, dict):
                found[path] = _digest(path, sums)
        if isinstance(files, dict) and isinstance(settings.get("path"), str) and settings["path"] not in found:
            found[settings["path"]] = _digest(settings["path"], files)
    parts = settings.values() if isinstance(settings, dict) else settings if isinstance(settings, list) else ()
    for part in parts:
        found |= _places(part)
    return found


def _digest(path: str, sums: Mapping[str, Any]) -> str:
    """Of one file, only its type and content; names within a folder may mean something, such as a split."""
    suffixes = "".join(PurePath(path).suffixes[-2:])
    known = [suffixes, *sums.values()] if [*sums] == [PurePath(path).name] else sums
    return "sha256:" + hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _renamed(settings: Any, places: Mapping[str, str]) -> Any:
    if isinstance(settings, dict):
        return {
            places.get(name, name): None if name in places else _renamed(value, places)
            for name, value in settings.items()
        }
    if isinstance(settings, list):
        return [_renamed(value, places) for value in settings]
    return places.get(settings, settings) if isinstance(settings, str) else settings
