"""Opens runs: from a recipe and what its files hold now, or as a record says."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unmdpo.core.errors import UserError
from unmdpo.core.files import read_small_json
from unmdpo.core.settings import Strict
from unmdpo.objectives.table import OBJECTIVES
from unmdpo.recipe import Recipe
from unmdpo.scale.settings import MarginSettings
from unmdpo.stages.graph import WANTED, Graph
from unmdpo.stages.pilot import OOF_STAGE
from unmdpo.stages.pipeline import SETTINGS, Pipeline
from unmdpo.stages.scale import SCALE_STAGE
from unmdpo.stages.shared.base import Stage
from unmdpo.store.pins import Contents, Pins, commits_in
from unmdpo.store.runs import runs_of
from unmdpo.store.store import RECORD, Store


def build(recipe: Recipe, store: Store, *, planning: bool = False, update: bool = False) -> Pipeline:
    """A recipe's stages, with what its places stand for now. Names on the Hub mean what they meant to the latest run
    of this name, unless they are to be updated. With `planning`, scales borrowed from other runs may be missing."""
    earlier = [] if update else [run for run in runs_of(store) if run.name.rpartition("-")[0] == recipe.name]
    commits = {
        name: commit for run in reversed(earlier) for name, commit in commits_in(run.record.get("inputs")).items()
    }
    contents = Contents(store, commits)
    pins = Pins(look=contents.digest)
    stages = _stages(Graph(recipe, pins, borrowed_scales(recipe, store, planning)))
    contents.save()
    return Pipeline(store, recipe, stages, pins, remarks=tuple(contents.remarks))


def read_record(store: Store, folder: Path) -> Pipeline:
    """A run as its record says, which needs neither its model nor its data."""
    try:
        record = read_small_json(folder / RECORD)
        recipe = Recipe.model_validate(read_small_json(folder / SETTINGS))
        places = {name: str(stage["place"]) for name, stage in record["stages"].items()}
        pins, code, forced = Pins(dict(record["inputs"])), dict(record["code"]), dict(record["forced"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / RECORD}: not the record of a run of this version: {error}") from error
    stages = _stages(Graph(recipe, pins, borrowed_scales(recipe, store, planning=True), code, places))
    return Pipeline(store, recipe, stages, pins, forced, name=folder.name)


def open_recorded(root: Path, name: str) -> Pipeline:
    """A run that has begun, for a process that does a part of it: what its places stand for is in the record."""
    store = Store(root)
    return read_record(store, store.root / "runs" / name)


def latest_record(recipe: Recipe, store: Store) -> Path | None:
    """The folder of the latest run of exactly this recipe."""
    return next((run.folder for run in runs_of(store) if run.record.get("recipe") == recipe.digest), None)


def _stages(graph: Graph) -> dict[str, Stage]:
    for add in WANTED:
        add(graph)
    return graph.stages


def borrowed_scales(recipe: Recipe, store: Store, planning: bool) -> dict[str, Stage]:
    """Scale → the finished stage of another run that fitted it. When planning, it may be missing."""
    stages: dict[str, Stage] = {}
    for name, scale in recipe.scales.items():
        if scale.run is not None:
            stages[name] = _scale_of(scale.run, name, store, planning)
            _check_same_margin(recipe, name, stages[name])
    return stages


def _scale_of(run: str, scale: str, store: Store, planning: bool) -> Stage:
    """The scale of the run with this name, with or without the digest at its end."""
    found: dict[str, tuple[str, Stage]] = {}  # place → run and stage
    for stored in runs_of(store):
        if run in (stored.name, stored.name.rpartition("-")[0]):
            other = read_record(store, stored.folder)
            stage = other.stages.get(SCALE_STAGE.stage_name(scale))
            if stage is not None and store.find(stage.place) is not None:
                found[stage.place] = (stored.name, stage)
    if len(found) > 1:
        names = ", ".join(sorted(name for name, _ in found.values()))
        raise UserError(f"several runs '{run}' have a scale '{scale}'; name one: {names}")
    if found:
        return next(replace(stage, name=f"{name}/{stage.name}") for name, stage in found.values())
    if planning:
        return Stage(SCALE_STAGE, f"{run}/{SCALE_STAGE.stage_name(scale)}", Strict(), key="of-another-run")
    raise UserError(f"no finished run '{run}' in this store has a scale '{scale}'; run it first")


def _check_same_margin(recipe: Recipe, scale: str, fitted: Stage) -> None:
    """Raises if a policy scores with another margin, β or kind of log-ratio than a borrowed scale was fitted with."""
    settings = fitted.settings
    if not hasattr(settings, "estimator") or not isinstance(settings.estimator.settings, MarginSettings):
        return  # not there yet, or not fitted to margins
    margin = settings.estimator.settings
    gathered = [stage.settings.beta for stage in fitted.inputs.values() if stage.kind is OOF_STAGE]
    beta = settings.beta or next(iter(gathered), None)
    for name, policy in recipe.policies.items():
        if policy.scale != scale:
            continue
        own = dict(recipe.choice_of(policy).resolved)
        own_beta = policy.settings.get("beta", recipe.beta if settings.beta is None else settings.beta)
        compared = {
            "τ": (margin.tau, own["tau"]),
            "m(k)": (_as_list(margin.levels), _as_list(own.get("levels"))),
            "length normalization": (settings.length_normalized, OBJECTIVES[policy.objective].normalized),
            "β": (beta, own_beta),
        }
        for what, (has, wants) in compared.items():
            if has is not None and has != wants:
                raise UserError(
                    f"policies.{name}: its scale '{scale}' of the run '{recipe.scales[scale].run}' was fitted with "
                    f"{what} = {has}, and the policy has {wants}: use the same, or fit a scale of its own"
                )


def _as_list(levels: Sequence[float] | None) -> list[float]:
    return [] if levels is None else [float(level) for level in levels]
