"""Finds artifacts that no run refers to, and damaged ones in quarantine."""

import json
import shutil
from pathlib import Path

from unmdpo.errors import UserError
from unmdpo.pipeline.borrowed import RECORD
from unmdpo.pipeline.store import QUARANTINE, Store


def unreferenced(store: Store) -> dict[str, int]:
    """Place → bytes, for artifacts that no run's record names, directly or as an input."""
    kept: set[str] = set()
    for record in (store.root / "runs").glob(f"*/{RECORD}"):
        try:
            stages = json.loads(record.read_text("utf-8"))["stages"]
            kept |= {stage["place"] for stage in stages.values()}
            kept |= {place for stage in stages.values() for place in stage["inputs"].values()}
        except (ValueError, KeyError) as error:
            raise UserError(f"{record}: cannot be read, so nothing is listed as unused: {error}") from error
    places = {f"{path.parent.name}/{path.name}": path for path in _folders(store.root / "artifacts", "*/*")}
    return {place: _size(path) for place, path in places.items() if place not in kept}


def quarantined(store: Store) -> dict[str, int]:
    """Place → bytes, for artifacts in quarantine."""
    return {f"{QUARANTINE}/{path.name}": _size(path) for path in _folders(store.root / QUARANTINE, "*")}


def discard(store: Store, place: str) -> None:
    if place.startswith(f"{QUARANTINE}/"):
        shutil.rmtree(store.root / place)
    else:
        store.remove(place)


def _folders(root: Path, pattern: str) -> list[Path]:
    """Matching folders, without stray files."""
    return sorted(path for path in root.glob(pattern) if path.is_dir())


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
