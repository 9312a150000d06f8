"""Scales that were fitted in another run of the same store."""

import json
import re
from pathlib import Path

from unmdpo.errors import UserError
from unmdpo.pipeline.stage import Job, Kind, Notes, Stage
from unmdpo.pipeline.stages.scales import SCALE_STAGE
from unmdpo.pipeline.store import Store
from unmdpo.settings import Strict

RECORD = "run.json"  # in a run's folder: its stages


class _Place(Strict):
    place: str


class _Borrowed(Stage[_Place]):
    """A stage of another run: its place is known, and its inputs belong to that run."""

    @property
    def place(self) -> str:
        return self.settings.place


def borrowed_scale(store: Store, run: str, scale: str, planning: bool) -> Stage[_Place]:
    """A fitted scale of another run, as a finished stage."""
    names = re.compile(rf"{re.escape(run)}(-[0-9a-f]{{12}})?")
    folders = [path.parent for path in (store.root / "runs").glob(f"*/{RECORD}") if names.fullmatch(path.parent.name)]
    places = dict[str, str]()
    for folder in sorted(folders):
        place = _place_in(folder / RECORD, SCALE_STAGE.called(scale))
        if place is not None and store.find(place) is not None:
            places.setdefault(place, folder.name)
    if not places and planning:
        places[f"{SCALE_STAGE.name}/of-another-run"] = run
    if not places:
        raise UserError(f"no finished run '{run}' in this store has a scale '{scale}'; run it first")
    if len(places) > 1:
        raise UserError(f"several runs '{run}' have a scale '{scale}'; name one: {', '.join(places.values())}")
    (place,) = places
    kind = Kind(SCALE_STAGE.name, _not_made_here, version=0)
    return _Borrowed(kind, f"{run}/{SCALE_STAGE.called(scale)}", _Place(place=place))


def _place_in(record: Path, stage: str) -> str | None:
    """Where another run's stage lies; None if it has none, or its record is damaged."""
    try:
        place = json.loads(record.read_text("utf-8"))["stages"][stage]["place"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return place if isinstance(place, str) else None


def _not_made_here(job: Job[_Place]) -> Notes:
    raise UserError(f"{job.stage.name} belongs to another run and is missing")
