"""Whether learned scales are real: each is checked beside the policies that use it, and nothing waits for it."""

from unmdpo.catalog.estimators import ESTIMATORS
from unmdpo.pipeline.artifacts import CHECK, COMPARISONS, ESTIMATOR
from unmdpo.pipeline.graph import Graph
from unmdpo.pipeline.stage import Job, Kind, Notes, Stage
from unmdpo.pipeline.stages.pilots import evidence_in
from unmdpo.pipeline.stages.scales import SCALE_STAGE, ScaleSettings, rows_of, scale, units_of
from unmdpo.scale import FrozenScale, make_estimator
from unmdpo.scale.check import OwnGain, check, verdict


def checks(graph: Graph) -> None:
    """Adds a check of every scale that is fitted to pilots in this run."""
    for name, spec in graph.recipe.scales.items():
        estimator = ESTIMATORS[spec.estimator]
        of_prompts = spec.unit == "prompt"  # pairs of one prompt are alike, so they cannot stand for each other
        if estimator.pilots and not estimator.beside and of_prompts and name not in graph.borrowed:
            _check(graph, name)


def _check(graph: Graph, name: str) -> Stage[ScaleSettings]:
    fitted = scale(graph, name)
    return graph.stage(
        CHECK_STAGE, fitted.settings, {**fitted.inputs, SCALE_STAGE.name: fitted}, CHECK_STAGE.called(name)
    )


def check_scale(job: Job[ScaleSettings]) -> Notes:
    choice, rows = job.settings.estimator, job.load(COMPARISONS, "comparisons")
    units, names = units_of(rows, choice, job.inputs.get("features"))
    seeds = [rows_of(rows, names, one, job) for one in evidence_in(job)]
    told = job.load(ESTIMATOR, SCALE_STAGE.name).diagnostics_
    own = OwnGain(told["own_gain"], told["own_chance"]) if told.get("own_gain") else None

    def make() -> FrozenScale:
        estimator = make_estimator(choice.name, choice.settings)
        assert isinstance(estimator, FrozenScale)
        return estimator

    found = check(make, units, seeds, own)
    job.save(CHECK, found)
    return {"real": found.real, "verdict": verdict(found)}


CHECK_STAGE = Kind("check", check_scale, version=5, wanted=checks)
