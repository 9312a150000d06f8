"""Artifacts on disk, found by what made them: whole or not there, each with a manifest.

artifacts/KIND/KEY/     finished: files and manifest.json
quarantine/KIND-KEY/    damaged: found so when it was read, and set aside
work/KEY/               unfinished: what a stage has so far, kept for the next try
locks/KEY               held while a stage works, released by the system if it dies
runs/NAME/run.json      which artifacts a run consists of
"""

import contextlib
import hashlib
import itertools
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock
from safetensors import SafetensorError

from unmdpo.engine.export import sha256
from unmdpo.errors import WAY_OUT, UserError, told_of_disk

MANIFEST, TIMINGS, QUARANTINE = "manifest.json", "throughput.jsonl", "quarantine"


@dataclass(frozen=True)
class Artifact:
    """A finished stage's folder."""

    path: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        found, _ = self._as_it_lies()
        if found is None:
            raise self._set_aside(MANIFEST)
        return found

    def _as_it_lies(self) -> tuple[dict[str, Any] | None, str]:
        """The manifest, if it is one, and its text; other trouble with the disk is not the artifact's."""
        try:
            text = (self.path / MANIFEST).read_text("utf-8")
            found = json.loads(text)
        except (FileNotFoundError, ValueError):
            return None, ""
        return (found if isinstance(found, dict) else None), text

    @property
    def intact(self) -> bool:
        """Whether the manifest is, to the byte, what was written."""
        found, text = self._as_it_lies()
        try:
            return found is not None and text == as_json(sealed(found))
        except ValueError:  # it holds what we never write
            return False

    @property
    def digest(self) -> str:
        """Of its contents: every file's name and checksum, without what only says how long it took."""
        files = {name: said for name, said in self.manifest["files"].items() if name != TIMINGS}
        text = json.dumps(files, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def file(self, name: str) -> Path:
        """A file or folder of it, after a look at the checksums of what is about to be read."""
        if not self.intact:
            raise self._set_aside(MANIFEST)
        files = self.manifest.get("files")
        told = {
            given: said
            for given, said in (files if isinstance(files, dict) else {}).items()
            if f"{given}/".startswith(f"{name}/")
        }
        if not told:
            raise UserError(f"{self.path} has no '{name}': another version may have made it; use --force")
        for given, said in told.items():
            if not _is(self.path / given, said):
                raise self._set_aside(given)
        return self.path / name

    def _set_aside(self, damaged: str) -> UserError:
        """Moves the artifact out of the way, so that the next run makes it anew."""
        root, kind, key = self.path.parents[2], self.path.parent.name, self.path.name
        place = _free(root / QUARANTINE / f"{kind}-{key}")
        try:
            place.parent.mkdir(exist_ok=True)
            self.path.rename(place)
        except OSError as error:
            how = f"it could not be set aside ({error.strerror}); remove the folder and run the same command"
        else:
            how = f"it now lies in {place}; the same command makes it anew"
        return UserError(f"{self.path}: damaged: {damaged} is not what was written; {how}")

    def json(self, name: str) -> Any:
        return json.loads(self.file(name).read_text("utf-8"))

    def damage(self) -> list[str]:
        """Files that are not what the manifest says, and the manifest if it is not what was written."""
        if not self.intact:
            return [MANIFEST]
        expected = self.manifest["files"]
        present = set(file_names(self.path)) - {MANIFEST}
        changed = [
            name
            for name in sorted(expected)
            if name in present and sha256(self.path / name) != expected[name]["sha256"]
        ]
        missing = [f"{name} (missing)" for name in sorted(set(expected) - present)]
        return [*changed, *missing, *(f"{name} (unexpected)" for name in sorted(present - set(expected)))]


_SEEN: dict[tuple[Path, int, int], str] = {}  # what was hashed by this process: a file as it was then


def _is(path: Path, said: Mapping[str, Any]) -> bool:
    """Whether a file is the one that the manifest speaks of."""
    try:
        found = path.stat()
        if found.st_size != said["bytes"]:
            return False
        key = (path, found.st_size, found.st_mtime_ns)
        if key not in _SEEN:
            _SEEN[key] = sha256(path)
    except (FileNotFoundError, TypeError, KeyError):  # not there, or a manifest that says nothing of it
        return False
    return bool(_SEEN[key] == said.get("sha256"))


def _free(path: Path) -> Path:
    """This path, or the first of its kind that is not taken."""
    taken = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(place for place in itertools.chain([path], taken) if not place.exists())


class Store:
    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Makes the folders: whoever only looks leaves nothing behind."""
        try:
            for name in ("artifacts", "work", "locks", "runs"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.root}: cannot keep a store here: {error.strerror}") from error
        if not os.access(self.root, os.W_OK):
            raise UserError(f"{self.root}: cannot keep a store here: it may not be written to")

    def find(self, place: str) -> Artifact | None:
        path = self.root / "artifacts" / place
        return Artifact(path) if (path / MANIFEST).is_file() else None

    def remove(self, place: str) -> None:
        """Forgets a finished artifact and whatever is unfinished of it."""
        kind, _, key = place.rpartition("/")
        with self._lock(key):
            (self.root / "artifacts" / place / MANIFEST).unlink(
                missing_ok=True
            )  # first: it is no longer finished
            shutil.rmtree(self.root / "artifacts" / kind / key, ignore_errors=True)
            shutil.rmtree(self.root / "work" / key, ignore_errors=True)

    def make(
        self, place: str, describe: Mapping[str, Any], work: Callable[[Path], Mapping[str, Any]]
    ) -> Artifact:
        """The artifact of this place: as it is, or made now by `work` in a folder of its own.

        Of several processes that want it, one works and the others wait for it.
        """
        _, _, key = place.rpartition("/")
        with self._lock(key):
            found = self.find(place)
            if found is not None:
                return found
            folder, target = self.root / "work" / key, self.root / "artifacts" / place
            folder.mkdir(exist_ok=True)
            for leftover in [folder / MANIFEST, *folder.glob(f".{MANIFEST}.*")]:
                leftover.unlink(missing_ok=True)  # of a try that ended just before the rename
            started, began = time.time(), time.monotonic()
            try:
                notes = work(folder)
                manifest = dict(describe) | {
                    "notes": dict(notes),
                    "files": {
                        name: {"sha256": sha256(folder / name), "bytes": (folder / name).stat().st_size}
                        for name in file_names(folder)
                    },
                    "versions": versions(),
                    "started": started,
                    "seconds": time.monotonic() - began,
                }
                write_json(folder / MANIFEST, sealed(manifest))
                _open_to_all_whom_the_umask_lets(folder)
                shutil.rmtree(target, ignore_errors=True)  # one without a manifest
                target.parent.mkdir(parents=True, exist_ok=True)
                folder.rename(target)
            except OSError as error:
                raise UserError(told_of_disk(error, folder)) from error
            except SafetensorError as error:
                if "os error" not in str(error):
                    raise
                raise UserError(f"{folder}: {error}; {WAY_OUT}") from error
            finally:
                with contextlib.suppress(OSError):
                    folder.rmdir()  # nothing was begun in it; what was begun is kept for the next try
            return Artifact(target)

    def _lock(self, key: str) -> FileLock:
        self.prepare()
        return FileLock(self.root / "locks" / key)


def _open_to_all_whom_the_umask_lets(folder: Path) -> None:
    """Some libraries write files for their owner alone; with whom a store is shared, the umask says."""
    umask = os.umask(0)
    os.umask(umask)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)


def file_names(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def sealed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest with the checksum of all else that it says."""
    said = {name: value for name, value in manifest.items() if name != "seal"}
    return said | {"seal": hashlib.sha256(as_json(said).encode()).hexdigest()}


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    write_text(path, as_json(value))


def write_text(path: Path, text: str) -> None:
    """Whole or not at all."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(text, "utf-8")
        aside.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # not the name it had meanwhile


def versions() -> dict[str, str]:
    found = {name: metadata.version(name) for name in ("unmdpo", "torch", "transformers", "numpy")}
    return found | {"python": platform.python_version(), "machine": platform.machine()}
