"""Finds artifacts that no run refers to, damaged ones in quarantine, and abandoned work."""

import shutil
from pathlib import Path

from filelock import Timeout

from unmdpo.core.errors import UserError
from unmdpo.core.files import read_small_json, remove
from unmdpo.store.artifact import QUARANTINE
from unmdpo.store.store import GIVEN, RECORD, WORK, Store

RECIPE = "recipe.yaml"


def unreferenced(store: Store, without: Path | None = None) -> dict[str, int]:
    """Place → bytes, for artifacts that no run's record names, directly or as an input, and for work on them or on
    what is finished; `without` a run that is about to be removed."""
    kept = _referenced(store, without)
    places = {f"{path.parent.name}/{path.name}": path for path in _folders(store, "artifacts/*/*")}
    spare = {place: path for place, path in places.items() if place not in kept}
    begun = {place.rpartition("/")[2] for place in kept if store.find(place) is None}
    spare |= {f"{WORK}/{path.name}": path for path in _folders(store, f"{WORK}/*") if path.name not in begun}
    return {place: folder_size(path) for place, path in spare.items()} | _given(store, without)


def _given(store: Store, without: Path | None) -> dict[str, int]:
    """What programs brought, and no run's recipe names."""
    runs = [run for run in (store.root / "runs").glob("*") if run != without and (run / RECIPE).is_file()]
    named = "".join((run / RECIPE).read_text("utf-8") for run in runs)
    places = [path for path in sorted((store.root / GIVEN).glob("*")) if path.name not in named]
    return {f"{GIVEN}/{path.name}": folder_size(path) if path.is_dir() else path.stat().st_size for path in places}


def quarantined(store: Store) -> dict[str, int]:
    """Place → bytes, for artifacts in quarantine."""
    return {f"{QUARANTINE}/{path.name}": folder_size(path) for path in _folders(store, f"{QUARANTINE}/*")}


def discard(store: Store, places: list[str]) -> list[str]:
    """Removes what is still unused, and returns what it was: a run may have begun since it was listed. None can begin
    meanwhile, and what is being worked on is left alone."""
    with store.records():
        spare = unreferenced(store) | quarantined(store)
        return [place for place in places if place in spare and _removed(store, place)]


def _removed(store: Store, place: str) -> bool:
    if place.startswith(f"{QUARANTINE}/"):
        shutil.rmtree(store.root / place)
        return True
    if place.startswith(f"{GIVEN}/"):
        remove(store.root / place)
        return True
    try:
        store.remove(place, patience=0)
    except Timeout:  # somebody works on it
        return False
    return True


def _referenced(store: Store, without: Path | None) -> set[str]:
    kept: set[str] = set()
    for record in (store.root / "runs").glob(f"*/{RECORD}"):
        if record.parent == without:
            continue
        try:
            stages = read_small_json(record)["stages"]
            kept |= {stage["place"] for stage in stages.values()}
            kept |= {place for stage in stages.values() for place in stage["inputs"].values()}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{record}: cannot be read, so nothing is listed as unused: {error}") from error
    return kept


def _folders(store: Store, pattern: str) -> list[Path]:
    """Matching folders, without stray files, and without what lies elsewhere behind a link."""
    root = store.root.resolve()
    return sorted(
        path
        for path in store.root.glob(pattern)
        if path.is_dir() and path.resolve() == root / path.relative_to(store.root)
    )


def folder_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
