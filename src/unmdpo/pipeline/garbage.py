"""Artifacts that no run refers to."""

import json

from unmdpo.errors import UserError
from unmdpo.pipeline.store import Store


def unreferenced(store: Store) -> dict[str, int]:
    """Place → bytes, of what no run's record names, directly or as an input."""
    kept: set[str] = set()
    for record in (store.root / "runs").glob("*/run.json"):
        try:
            stages = json.loads(record.read_text("utf-8"))["stages"]
            kept |= {stage["place"] for stage in stages.values()}
            kept |= {place for stage in stages.values() for place in stage["inputs"].values()}
        except (ValueError, KeyError) as error:
            raise UserError(f"{record}: not readable, so nothing is called unreferenced: {error}") from error
    places = sorted(path for path in (store.root / "artifacts").glob("*/*") if path.is_dir())
    return {
        f"{path.parent.name}/{path.name}": sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        for path in places
        if f"{path.parent.name}/{path.name}" not in kept
    }
