"""Artifacts on disk, found by the key of the stage that made them. Each is complete or absent, and has a manifest.

artifacts/KIND/KEY/     finished: files and manifest.json
quarantine/KIND-KEY/    damaged: detected on reading, and moved out of the way
work/KEY/result/        unfinished: begun anew by every attempt, so that an artifact holds what one attempt wrote
work/KEY/state/         what the next attempt goes on from, such as checkpoints; with checksums
locks/KEY               held while a stage runs; the system releases it if the process dies
runs/NAME/run.json      which artifacts belong to a run
proofs/KEY.json         how a model was shown to be scored right on this kind of device
"""

import contextlib
import fcntl
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from unmdpo.core.errors import RESUME_HINT, UserError, disk_problem
from unmdpo.core.files import apply_umask, file_names, remove, remove_leftovers, sha256, with_seal, write_json
from unmdpo.store.artifact import MANIFEST, Artifact
from unmdpo.version import __version__

RECORD = "run.json"  # in a run's folder: its stages
WORK, RESULT, STATE = "work", "result", "state"  # unfinished work, and its two parts
GIVEN = "given"  # models and rows that programs brought


class Store:
    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def proofs(self) -> Path:
        return self.root / "proofs"

    def prepare(self) -> None:
        """Creates the folders, and tries whether files can be locked there. Reading does not call this, so reading
        never creates anything."""
        try:
            for name in ("artifacts", "work", "locks", "runs", "proofs"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.root}: cannot keep a store here: {error.strerror}") from error
        if not os.access(self.root, os.W_OK):
            raise UserError(f"{self.root}: cannot keep a store here: it is not writable")
        problem = _no_locks(self.root / "locks")
        if problem:
            raise UserError(
                f"{self.root}: cannot keep a store here: its file system cannot lock files ({problem}), so two runs "
                "would spoil each other's work: name a folder elsewhere (--store), or mount it with locks"
            )

    def find(self, place: str) -> Artifact | None:
        path = self.root / "artifacts" / place
        return Artifact(path) if (path / MANIFEST).is_file() else None

    def remove(self, place: str, patience: float = -1) -> None:
        """Removes an artifact, finished or not; of `work/KEY`, only the work on it. Waits for whoever works on it,
        this many seconds or as long as it takes."""
        kind, _, key = place.rpartition("/")
        with self.lock(key).acquire(patience):
            if kind == WORK:
                shutil.rmtree(self.root / WORK / key, ignore_errors=True)
                return
            (self.root / "artifacts" / place / MANIFEST).unlink(missing_ok=True)  # first: no longer finished
            shutil.rmtree(self.root / "artifacts" / kind / key, ignore_errors=True)
            shutil.rmtree(self.root / "work" / key, ignore_errors=True)

    def tidy(self, places: Iterable[str]) -> None:
        """Removes work on what is finished: a kill just after the rename leaves it there."""
        begun = {path.name for path in (self.root / WORK).iterdir()} if (self.root / WORK).is_dir() else set()
        for place in places:
            key = place.rpartition("/")[2]
            if key in begun and self.find(place) is not None:
                with contextlib.suppress(Timeout), self.lock(key).acquire(0):  # whoever works there tidies up, too
                    shutil.rmtree(self.root / WORK / key, ignore_errors=True)

    def make(self, place: str, describe: Mapping[str, Any], work: Callable[[Path], Mapping[str, Any]]) -> Artifact:
        """Returns the artifact at this place, or has `work` create it in a separate folder.

        If several processes want it, one does the work and the others wait.
        """
        _, _, key = place.rpartition("/")
        with self.lock(key):
            existing = self.find(place)
            folder, target = self.work_folder(place), self.root / "artifacts" / place
            if existing is not None:
                shutil.rmtree(folder.parent, ignore_errors=True)  # of an attempt that ended just after the rename
                return existing
            started, began = time.time(), time.monotonic()
            try:
                _begin_anew(folder)
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
                write_json(folder / MANIFEST, with_seal(manifest))
                apply_umask(folder)
                shutil.rmtree(target, ignore_errors=True)  # a leftover without a manifest
                target.parent.mkdir(parents=True, exist_ok=True)
                folder.rename(target)
                shutil.rmtree(folder.parent, ignore_errors=True)
            except OSError as error:
                raise UserError(disk_problem(error, folder)) from error
            except SafetensorError as error:
                if "os error" not in str(error):
                    raise
                raise UserError(f"{folder}: {error}; {RESUME_HINT}") from error
            finally:
                for place_of_work in (folder, folder.parent):
                    with contextlib.suppress(OSError):
                        place_of_work.rmdir()  # only if empty; unfinished work is kept for the next attempt
            return Artifact(target)

    def work_folder(self, place: str) -> Path:
        """The folder where the artifact for this place is created."""
        return self.root / "work" / place.rpartition("/")[2] / RESULT

    def records(self) -> FileLock:
        """Held while a run's record is written, and while what no record names is removed."""
        return self.lock(".records")

    def is_taken(self, place: str) -> bool:
        """Whether somebody works on the artifact for this place."""
        lock = self.lock(place.rpartition("/")[2])
        try:
            lock.acquire(0)
        except Timeout:
            return True
        lock.release()
        return False

    def lock(self, key: str) -> FileLock:
        self.prepare()
        return FileLock(self.root / "locks" / key)


def state_of(folder: Path) -> Path:
    """Beside the folder of an attempt, what the next attempt goes on from."""
    return folder.parent / STATE


def _begin_anew(folder: Path) -> None:
    """An empty folder for an attempt; of earlier ones, only the state is left."""
    folder.parent.mkdir(exist_ok=True)
    for other in folder.parent.iterdir():
        if other != state_of(folder):
            remove(other)
    remove_leftovers(state_of(folder))
    folder.mkdir()


@cache
def _no_locks(folder: Path) -> str:
    """Why files in this folder cannot be locked; empty if they can."""
    try:
        with (folder / ".tried").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return ""  # somebody else tries
    except OSError as error:
        return error.strerror or str(error)
    return ""


@cache
def versions() -> dict[str, str]:
    """Of everything that may change a result."""
    packages = {name: metadata.version(name) for name in ("torch", "transformers", "tokenizers", "numpy")}
    return {"unmdpo": __version__} | packages | {"python": platform.python_version(), "machine": platform.machine()}
