"""Artifacts on disk, found by the key of the stage that made them. Each is complete or absent, and has a manifest.

artifacts/KIND/KEY/     finished: files and manifest.json; KEY.damaged if it was found damaged, which nothing reads
work/KEY/result/        unfinished: begun anew by every attempt, so that an artifact holds what one attempt wrote
work/KEY/state/         what the next attempt on the same inputs goes on from, such as checkpoints and answers
locks/KEY               held while a stage runs; the system releases it if the process dies
runs/NAME/run.json      which artifacts belong to a run
proofs/KEY.json         how a model was shown to be scored right on this kind of device
"""

import contextlib
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
from unmdpo.core.files import apply_umask, as_json, file_names, remove, remove_leftovers, sha256, with_seal, write_json
from unmdpo.store.artifact import MANIFEST, Artifact
from unmdpo.version import __version__

RECORD = "run.json"  # in a run's folder: its stages
WORK, RESULT, STATE = "work", "result", "state"  # unfinished work, and its two parts
INPUTS = "inputs.json"  # beside them: what the attempt was made from
GIVEN = "given"  # models and rows that programs brought


class Store:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._seen: dict[
            str, tuple[tuple[int, int, int], Artifact]
        ] = {}  # place → its manifest's file, and what it is

    @property
    def proofs(self) -> Path:
        return self.root / "proofs"

    def prepare(self) -> None:
        """Creates the folders. Reading does not call this, so reading never creates anything."""
        try:
            for name in ("artifacts", "work", "locks", "runs", "proofs"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.root}: cannot keep a store here: {error.strerror}") from error
        if not os.access(self.root, os.W_OK):
            raise UserError(f"{self.root}: cannot keep a store here: it is not writable")

    def find(self, place: str) -> Artifact | None:
        """The artifact at this place, with what was read of it as long as its manifest is the same file."""
        path = self.root / "artifacts" / place
        try:
            status = (path / MANIFEST).stat()
        except OSError:
            return None
        state = (status.st_ino, status.st_mtime_ns, status.st_size)
        if place not in self._seen or self._seen[place][0] != state:
            self._seen[place] = (state, Artifact(path))
        return self._seen[place][1]

    def remove(self, place: str, patience: float = -1) -> None:
        """Removes an artifact, finished or not; of `work/KEY`, only the work on it. Waits for whoever works on it,
        this many seconds or as long as it takes."""
        kind, _, key = place.rpartition("/")
        with self.lock(key).acquire(patience):
            if kind != WORK:
                (self.root / "artifacts" / place / MANIFEST).unlink(missing_ok=True)  # first: no longer finished
                shutil.rmtree(self.root / "artifacts" / kind / key, ignore_errors=True)
            shutil.rmtree(self.root / WORK / key, ignore_errors=True)

    def tidy(self, places: Iterable[str]) -> None:
        """Removes work on what is finished: a kill just after the rename leaves it there."""
        begun = {path.name for path in (self.root / WORK).iterdir()} if (self.root / WORK).is_dir() else set()
        for place in places:
            key = place.rpartition("/")[2]
            if key in begun and self.find(place) is not None:
                with contextlib.suppress(Timeout), self.lock(key).acquire(0):  # whoever works there tidies up, too
                    shutil.rmtree(self.root / WORK / key, ignore_errors=True)

    def make(
        self,
        place: str,
        describe: Mapping[str, Any],
        work: Callable[[Path], Mapping[str, Any]],
        is_current: Callable[[Artifact], bool] = lambda artifact: True,
    ) -> Artifact:
        """Returns the artifact at this place if it is current, or has `work` create it in a separate folder; what it
        replaces stays until the new one is complete.

        If several processes want it, one does the work and the others wait.
        """
        _, _, key = place.rpartition("/")
        with self.lock(key):
            existing = self.find(place)
            folder, target = self.work_folder(place), self.root / "artifacts" / place
            if existing is not None and is_current(existing):
                shutil.rmtree(folder.parent, ignore_errors=True)  # of an attempt that ended just after the rename
                return existing
            started, began = time.time(), time.monotonic()
            try:
                _begin_anew(folder, describe.get("inputs"))
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
                shutil.rmtree(target, ignore_errors=True)  # a leftover without a manifest, or what is replaced
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
                _remove_if_empty(folder)
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


def _remove_if_empty(folder: Path) -> None:
    """Unfinished work is kept for the next attempt; of an attempt that left none, nothing stays."""
    for part in (folder, state_of(folder)):
        with contextlib.suppress(OSError):
            part.rmdir()
    if not state_of(folder).exists():
        remove(folder.parent / INPUTS)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()


def _begin_anew(folder: Path, inputs: Mapping[str, Any] | None) -> None:
    """An empty folder for an attempt; of earlier ones only the state is left, if they had the same inputs. A journal
    of scores would otherwise go on with answers that it never saw."""
    folder.parent.mkdir(exist_ok=True)
    attempted = folder.parent / INPUTS
    if not attempted.is_file() or attempted.read_text("utf-8") != as_json(inputs):
        remove(state_of(folder))
        write_json(attempted, inputs)
    for other in folder.parent.iterdir():
        if other not in (state_of(folder), attempted):
            remove(other)
    remove_leftovers(state_of(folder))
    folder.mkdir()


# Of everything that computes, as this process has it: an upgrade during a run shows in the manifests of later stages.
COMPUTING = (
    "torch", "transformers", "tokenizers", "numpy", "peft", "jinja2", "pyarrow", "scikit-learn", "lm-eval",
)  # fmt: skip


@cache
def versions() -> dict[str, str]:
    """Of everything that may change a result."""
    installed = {name: version for name in COMPUTING if (version := _version(name)) is not None}
    return {"unmdpo": __version__} | installed | {"python": platform.python_version(), "machine": platform.machine()}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # an extra
        return None
