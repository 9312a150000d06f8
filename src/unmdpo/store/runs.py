"""The runs of a store: what there is of each, what no run refers to, and how both are removed.

A run's record goes only by its name, and artifacts go only when no record refers to them.
"""

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import Timeout

from unmdpo.core.errors import UserError, did_you_mean
from unmdpo.core.files import read_small_json, remove
from unmdpo.store.store import GIVEN, RECORD, WORK, Store

RECIPE = "recipe.yaml"


@dataclass(frozen=True)
class StoredRun:
    """A run as recorded, without its data or models."""

    store: Store
    folder: Path
    record: dict[str, Any]  # empty if it cannot be read
    begun: float  # seconds since 1970

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def places(self) -> list[str]:
        """Of its stages."""
        stages = self.record.get("stages", {})
        return [str(stage["place"]) for stage in stages.values()]

    @cached_property
    def finished(self) -> list[str]:
        return [place for place in self.places if self.store.find(place) is not None]

    @property
    def size(self) -> int:
        """Bytes of its finished stages, which other runs may share."""
        return sum(folder_size(self.store.root / "artifacts" / place) for place in self.finished)


def runs_of(store: Store) -> list[StoredRun]:
    """The latest first. A record that cannot be read is an empty run."""
    runs = []
    for path in (store.root / "runs").glob(f"*/{RECORD}"):
        try:
            record = _read(path)
        except UserError:
            record = {}
        runs.append(StoredRun(store, path.parent, record, path.stat().st_mtime))
    return sorted(runs, key=lambda run: run.begun, reverse=True)


def find_run(store: Store, name: str) -> StoredRun:
    """By its folder's name, or the beginning of it if only one begins so."""
    if not name.strip():
        raise UserError("name a run: an empty name would be the beginning of every one")
    runs = {run.name: run for run in runs_of(store)}
    matching = [run for run in runs if run == name] or [run for run in runs if run.startswith(name)]
    if len(matching) > 1:
        raise UserError(f"several runs begin with '{name}': {', '.join(matching)}")
    if not matching:
        raise UserError(f"{store.root} has no run '{name}'; {did_you_mean(name, runs)}")
    return runs[matching[0]]


def unused(store: Store) -> dict[str, int]:
    """Place → bytes, for what no run's record names, directly or as an input: artifacts, damaged ones, work on them or
    on what is finished, and what programs brought."""
    referenced = _referenced(store)
    places = {f"{path.parent.name}/{path.name}": path for path in _folders(store, "artifacts/*/*")}
    spare = {place: path for place, path in places.items() if place not in referenced}
    unfinished = {place.rpartition("/")[2] for place in referenced if store.find(place) is None}
    spare |= {f"{WORK}/{path.name}": path for path in _folders(store, f"{WORK}/*") if path.name not in unfinished}
    recipes = "".join(path.read_text("utf-8") for path in (store.root / "runs").glob(f"*/{RECIPE}"))
    brought = sorted((store.root / GIVEN).glob("*"))
    spare |= {f"{GIVEN}/{path.name}": path for path in brought if path.name not in recipes}
    return {place: folder_size(path) for place, path in spare.items()}


def remove_unused(store: Store, places: list[str]) -> list[str]:
    """Removes what is still unused, and returns what it was: a run may have begun since it was listed. None can begin
    meanwhile, and what is being worked on is left alone."""
    with store.records():
        spare = unused(store)
        return [place for place in places if place in spare and _removed(store, place)]


def remove_record(run: StoredRun) -> None:
    """Removes the run's record, report and recipe. Its artifacts stay until `remove_unused`."""
    with run.store.records():
        shutil.rmtree(run.folder)


def _removed(store: Store, place: str) -> bool:
    if place.startswith(f"{GIVEN}/"):
        remove(store.root / place)
        return True
    try:
        store.remove(place, patience=0)
    except Timeout:  # somebody works on it
        return False
    return True


def _referenced(store: Store) -> set[str]:
    places: set[str] = set()
    for path in (store.root / "runs").glob(f"*/{RECORD}"):
        for stage in _read(path)["stages"].values():
            places |= {stage["place"], *stage["inputs"].values()}
    return places


def _read(path: Path) -> dict[str, Any]:
    try:
        record = read_small_json(path)
        _ = [(stage["place"], stage["inputs"].values()) for stage in record["stages"].values()]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read, so nothing is listed as unused: {error}") from error
    return dict(record)


def _folders(store: Store, pattern: str) -> list[Path]:
    """Matching folders, without stray files, and without what lies elsewhere behind a link."""
    root = store.root.resolve()
    return sorted(
        path
        for path in store.root.glob(pattern)
        if path.is_dir() and path.resolve() == root / path.relative_to(store.root)
    )


def folder_size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
