"""Scales of other runs. A scale is fitted with one τ, m(k), β and kind of log-ratio, and goes with policies that have
the same."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmdpo.core.errors import UserError
from unmdpo.core.files import read_small_json
from unmdpo.core.settings import Strict
from unmdpo.objectives.table import OBJECTIVES
from unmdpo.recipe import Recipe
from unmdpo.stages.scales import SCALE_STAGE
from unmdpo.stages.shared.base import Job, Kind, Notes, Stage
from unmdpo.store.store import RECORD, Store


class _Place(Strict):
    place: str


class _Borrowed(Stage[_Place]):
    """A stage of another run: its place is known, and its inputs belong to that run."""

    @property
    def place(self) -> str:
        return self.settings.place


def borrowed_scale(recipe: Recipe, store: Store, scale: str, planning: bool) -> Stage[_Place]:
    """A fitted scale of another run, as a finished stage. When planning, it may be missing."""
    run = recipe.scales[scale].run
    assert run is not None
    names = re.compile(rf"{re.escape(run)}(-[0-9a-f]{{12}})?")
    folders = [path.parent for path in (store.root / "runs").glob(f"*/{RECORD}") if names.fullmatch(path.parent.name)]
    places = dict[str, str]()
    for folder in sorted(folders):
        place = _place_in(folder / RECORD, SCALE_STAGE.stage_name(scale))
        if place is not None and store.find(place) is not None:
            places.setdefault(place, folder.name)
    if not places and planning:
        places[f"{SCALE_STAGE.name}/of-another-run"] = run
    if not places:
        raise UserError(f"no finished run '{run}' in this store has a scale '{scale}'; run it first")
    if len(places) > 1:
        raise UserError(f"several runs '{run}' have a scale '{scale}'; name one: {', '.join(places.values())}")
    (place,) = places
    found = store.find(place)
    if found is not None:
        _check(recipe, store, scale, found.manifest)
    kind = Kind(SCALE_STAGE.name, _not_made_here)
    return _Borrowed(kind, f"{run}/{SCALE_STAGE.stage_name(scale)}", _Place(place=place))


def _place_in(record: Path, stage: str) -> str | None:
    """Where another run's stage lies; None if it has none, or its record is damaged."""
    try:
        place = read_small_json(record)["stages"][stage]["place"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return place if isinstance(place, str) else None


def _not_made_here(job: Job[_Place]) -> Notes:
    raise UserError(f"{job.stage.name} belongs to another run and is missing")


def _check(recipe: Recipe, store: Store, scale: str, manifest: Mapping[str, Any]) -> None:
    """Raises if a policy scores with another margin or β than the scale was fitted with."""
    settings = manifest["settings"]
    fitted = settings["estimator"]["settings"]
    if "tau" not in fitted:
        return  # not fitted to margins
    gathered = [store.find(one["place"]) for role, one in manifest["inputs"].items() if role.startswith("oof")]
    betas = [found.manifest["settings"]["beta"] for found in gathered if found is not None]
    beta = settings["beta"] or next(iter(betas), None)
    for name, policy in recipe.policies.items():
        if policy.scale != scale:
            continue
        own, normalized = dict(policy.choice.resolved), OBJECTIVES[policy.objective].normalized
        theirs = {
            "τ": (fitted["tau"], own["tau"]),
            "m(k)": (_listed(fitted["levels"]), _listed(own.get("levels"))),
            "length normalization": (settings["length_normalized"], normalized),
            "β": (beta, policy.settings.get("beta", recipe.beta if settings["beta"] is None else settings["beta"])),
        }
        for what, (has, wants) in theirs.items():
            if has is not None and has != wants:
                raise UserError(
                    f"policies.{name}: its scale '{scale}' of the run '{recipe.scales[scale].run}' was fitted with "
                    f"{what} = {has}, and the policy has {wants}: use the same, or fit a scale of its own"
                )


def _listed(levels: Any) -> list[float]:
    return [] if levels is None else [float(level) for level in levels]
