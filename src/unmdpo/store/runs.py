"""The runs of a store: what there is of each, and how to remove one."""

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from unmdpo.core.errors import UserError, did_you_mean
from unmdpo.core.files import read_small_json
from unmdpo.store.garbage import discard, folder_size, unreferenced
from unmdpo.store.store import RECORD, Store


@dataclass(frozen=True)
class StoredRun:
    """A run as recorded, without its data or models."""

    store: Store
    folder: Path
    places: tuple[str, ...]  # of its stages
    begun: float  # seconds since 1970

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def finished(self) -> list[str]:
        return [place for place in self.places if self.store.find(place) is not None]

    @property
    def size(self) -> int:
        """Bytes of its finished stages, which other runs may share."""
        return sum(folder_size(self.store.root / "artifacts" / place) for place in self.finished)


def runs_of(store: Store) -> list[StoredRun]:
    """The latest first. A record that cannot be read is an empty run."""
    found = []
    for record in (store.root / "runs").glob(f"*/{RECORD}"):
        try:
            stages = read_small_json(record)["stages"].values()
            places = tuple(str(stage["place"]) for stage in stages)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            places = ()
        found.append(StoredRun(store, record.parent, places, record.stat().st_mtime))
    return sorted(found, key=lambda run: run.begun, reverse=True)


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


def remove_run(run: StoredRun) -> int:
    """Removes the run and what only it has; returns the bytes that were freed. What others share stays."""
    with run.store.records():
        spare = unreferenced(run.store, without=run.folder)  # first: it fails if a record cannot be read
        shutil.rmtree(run.folder)
        work = {f"work/{place.rpartition('/')[2]}" for place in run.places}
        own = {place: size for place, size in spare.items() if place in run.places or place in work}
    return sum(own[place] for place in discard(run.store, [*own]))
