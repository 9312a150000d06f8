"""A finished stage's folder: its files, their checksums, and what happens when one of them is damaged."""

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from unmdpo.core.errors import UserError
from unmdpo.core.files import file_names, read_sealed, read_small_json, sha256

MANIFEST = "manifest.json"
DAMAGED = ".damaged"  # is added to the name of a damaged artifact, which nothing reads anymore
LOG = ".log"  # ends the names of files that are not part of the result
Line = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Artifact:
    """A finished stage's folder."""

    path: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What it says, even if it was changed since."""
        try:
            manifest = read_small_json(self.path / MANIFEST)
        except (FileNotFoundError, ValueError):
            manifest = None
        if not isinstance(manifest, dict):
            raise self._set_aside(MANIFEST)
        return manifest

    @cached_property
    def intact(self) -> bool:
        """Whether the manifest is exactly what was written."""
        return read_sealed(self.path / MANIFEST) is not None

    @cached_property
    def digest(self) -> str:
        """A digest of its contents: every file's name and checksum, except for logs."""
        files = {name: entry for name, entry in self.manifest["files"].items() if not name.endswith(LOG)}
        text = json.dumps(files, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def file(self, name: str) -> Path:
        """The path of one of its files or folders, after verifying the checksums, and that nothing was added to it."""
        if not self.intact:
            raise self._set_aside(MANIFEST)
        if not self.in_place:
            raise self._set_aside(f"a result of {self.manifest.get('name')}", "was moved or copied here")
        files = self.manifest.get("files")
        prefix = f"{name}/" if name else ""  # an empty name means the whole artifact
        listed = {
            member: entry
            for member, entry in (files if isinstance(files, dict) else {}).items()
            if f"{member}/".startswith(prefix)
        }
        if not listed:
            raise UserError(f"{self.path} has no '{name}': it may be from another version; rebuild it with --force")
        for member, entry in listed.items():
            if not _matches(self.path / member, entry):
                raise self._set_aside(member)
        added = {f"{prefix}{member}" for member in file_names(self.path / name)} - {MANIFEST, *listed}
        if added:
            raise UserError(f"{self.path / min(added)}: this was added to a finished result; remove it, or move it")
        return self.path / name

    @property
    def in_place(self) -> bool:
        """Whether it is what its folder says: not one that was moved or copied here."""
        return (self.manifest.get("kind"), self.manifest.get("key")) == (self.path.parent.name, self.path.name)

    def _set_aside(self, damaged: str, how: str = "is not what was written") -> UserError:
        """Renames the artifact, so that the next run rebuilds it. What is in it, such as answers that were paid for,
        can still be looked at until `unmdpo rm --unused`."""
        aside = _free(self.path.with_name(f"{self.path.name}{DAMAGED}"))
        try:
            self.path.rename(aside)
        except OSError as error:
            then = f"it could not be renamed ({error.strerror}); remove the folder and run the same command again"
        else:
            then = f"it is kept as {aside.name}, and the same command rebuilds it"
        return UserError(f"{self.path}: damaged: {damaged} {how}; {then}")

    def damage(self) -> list[str]:
        """Files that differ from the manifest, or the manifest itself if it was changed or belongs elsewhere."""
        if not self.intact or not self.in_place:
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


_HASHED: dict[tuple[Path, int, int], str] = {}  # checksums this process computed, by path, size and modification time


def _matches(path: Path, entry: Mapping[str, Any]) -> bool:
    """Whether a file matches its entry in the manifest."""
    try:
        status = path.stat()
        if status.st_size != entry["bytes"]:
            return False
        key = (path, status.st_size, status.st_mtime_ns)
        if key not in _HASHED:
            _HASHED[key] = sha256(path)
    except (FileNotFoundError, TypeError, KeyError):  # missing, or a malformed entry
        return False
    return bool(_HASHED[key] == entry.get("sha256"))


def _free(path: Path) -> Path:
    """This path, or the first unused one with a number added."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(candidate for candidate in itertools.chain([path], numbered) if not candidate.exists())


@dataclass(frozen=True)
class ArtifactFile(Generic[T]):
    name: str
    write: Callable[[Path, T], None]
    read: Callable[[Path], T]

    def save(self, folder: Path, value: T) -> None:
        self.write(folder / self.name, value)

    def load(self, artifact: Artifact) -> T:
        """Reads the file after verifying its checksum."""
        return self.read(artifact.file(self.name))
