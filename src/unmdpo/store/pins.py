"""What the paths and Hub names of a run stand for, found out once when it begins and recorded with it.

Files count by their content, names on the Hub by their commit. A run that is read later, or whose stages run in other
processes, takes both from its record, so that everybody means the same.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any, TypeVar

from unmdpo.core.errors import UserError
from unmdpo.core.files import read_small_json, sha256, write_json
from unmdpo.core.places import Place, places_in, with_places
from unmdpo.engine.hub import commit_of
from unmdpo.store.keys import digest_of
from unmdpo.store.store import Store

COMMIT = "commit "  # begins the digest of what lies on the Hub
MISSING, NOT_ON_HUB = "missing", "missing from the Hub: "  # of what is nowhere
T = TypeVar("T")
FileState = tuple[int, int, int, int]  # size, times and inode: what changes when somebody writes to a file


class Pins:
    """The digest of every place in a run's settings, by the place's kind, path and revision."""

    def __init__(
        self, recorded: Mapping[str, str] | None = None, look: Callable[[Place, str | None], str] | None = None
    ) -> None:
        self.digests: dict[str, str] = dict(recorded or {})
        self._look = look

    def pin(self, settings: T) -> T:
        """The same settings, with the digest of every place in them, and with commits for revisions."""
        pinned: T = with_places(settings, self._pinned)
        return pinned

    def _pinned(self, place: Place, revision: str | None) -> tuple[Place, str | None]:
        label = f"{type(place).__name__} {place}" + (f" at {revision}" if revision else "")
        if label not in self.digests:
            if self._look is None:
                raise UserError(
                    f"the run's record does not say what '{place}' was: it is of another version of unmdpo"
                )
            self.digests[label] = self._look(place, revision)
        digest = self.digests[label]
        commit = digest.removeprefix(COMMIT) if digest.startswith(COMMIT) else revision
        return place.pinned(digest), commit


class Contents:
    """Finds out what lies at a place now.

    Checksums of files are remembered for as long as a file's size, times and inode stay the same, because models are
    large; a file whose content was changed under its old date has another change time.
    """

    def __init__(self, store: Store, commits: Mapping[str, str] | None = None) -> None:
        self._file = store.root / "fingerprints.json"
        self._known = _remembered(self._file)
        self._changed = False
        self._commits = commits or {}  # of an earlier run: its names on the Hub mean what they meant then
        self.remarks: list[str] = []

    def digest(self, place: Place, revision: str | None = None) -> str:
        files = place.files()
        if not files:
            return self._on_the_hub(place, revision) if place.is_hub_name else MISSING
        checksums = {name: self.checksum(file) for name, file in files.items()}
        if place.local is not None and place.local.is_file():
            (name,) = checksums  # of a single file, the type counts, and not how it is called
            suffixes = PurePath(name).suffixes
            kind = "".join(suffixes[-2:] if suffixes[-1:] == [".gz"] else suffixes[-1:])
            return digest_of(["file", kind, checksums[name]])
        return digest_of(["folder", checksums])

    def checksum(self, file: Path) -> str:
        name = str(file.resolve())
        state = list(file_state(file))
        known = self._known.get(name)
        if not isinstance(known, dict) or known.get("seen") != state or not isinstance(known.get("sha256"), str):
            known = {"seen": state, "sha256": _read_whole(file)}
            self._known[name] = known
            self._changed = True
        return str(known["sha256"])

    def _on_the_hub(self, place: Place, revision: str | None) -> str:
        assert place.hub is not None
        asked = f"{place}@{revision or 'main'}"
        if asked in self._commits:
            self.remarks.append(
                f"{asked} is {self._commits[asked][:12]}, as when this run began (--update asks again)"
            )
            return COMMIT + self._commits[asked]
        found = commit_of(place, place.hub, revision)
        if found is None:
            return NOT_ON_HUB + asked
        if found.cached:
            self.remarks.append(f"{asked} is {found.sha[:12]} in the cache of this machine; the Hub was not reached")
        return COMMIT + found.sha

    def save(self) -> None:
        """Remembers what was read, unless the store is not there yet or read-only."""
        folder = self._file.parent
        if self._changed and folder.is_dir() and os.access(folder, os.W_OK):
            write_json(self._file, self._known)


def pinned_now(settings: T) -> T:
    """Settings with the digests of what lies there now, outside of any run."""
    with tempfile.TemporaryDirectory() as nowhere:
        return Pins(look=Contents(Store(Path(nowhere))).digest).pin(settings)


def commits_in(digests: Any) -> dict[str, str]:
    """`name@revision` → commit, of a run's digests; nothing, if its record is damaged."""
    commits: dict[str, str] = {}
    for label, digest in digests.items() if isinstance(digests, dict) else ():
        if str(digest).startswith(COMMIT):
            _, _, asked = label.partition(" ")
            name, _, revision = asked.partition(" at ")
            commits[f"{name}@{revision or 'main'}"] = str(digest).removeprefix(COMMIT)
    return commits


def file_states(settings: Any) -> dict[Path, FileState]:
    """Every local file that some settings name, with what changes when somebody writes to it."""
    files = {file for _, place in places_in(settings) for file in place.files().values()}
    return {file: file_state(file) for file in files if file.is_file()}


def changed_place(settings: Any, contents: Contents) -> Place | None:
    """A place whose content is no longer what the run began with. What is on the Hub stays as it is: a commit."""
    for _, place in places_in(settings):
        is_local = place.digest is not None and not place.digest.startswith((COMMIT, NOT_ON_HUB))
        if is_local and contents.digest(place) != place.digest:
            return place  # also one where nothing lay, and now something does
    return None


def file_state(file: Path) -> FileState:
    status = file.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _read_whole(file: Path) -> str:
    try:
        return sha256(file)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror or error}") from error


def _remembered(file: Path) -> dict[str, Any]:
    """Nothing, if the file is missing or damaged."""
    try:
        known = read_small_json(file)
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
