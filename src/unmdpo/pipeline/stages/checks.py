"""Whether learned scales are real: each is checked beside the policies that use it, and nothing waits for it."""

from typing import Any

from unmdpo.catalog.estimators import ESTIMATORS
from unmdpo.pipeline.artifacts import CHECK, COMPARISONS
from unmdpo.pipeline.graph import Graph
from unmdpo.pipeline.stage import Job, Kind, Notes, Stage
from unmdpo.pipeline.stages.pilots import evidence_in
from unmdpo.pipeline.stages.scales import ScaleSettings, rows_of, scale_settings, units_of
from unmdpo.pipeline.stages.scales import needed as needed_by_scale
from unmdpo.scale import FrozenScale, make_estimator
from unmdpo.scale.check import Check, check, verdict


def checks(graph: Graph) -> None:
    """Adds a check of every scale that is fitted to pilots in this run."""
    for name, spec in graph.recipe.scales.items():
        estimator = ESTIMATORS[spec.estimator]
        of_prompts = spec.unit == "prompt"  # pairs of one prompt are alike, so they cannot stand for each other
        if estimator.pilots and not estimator.beside and of_prompts and name not in graph.borrowed:
            _check(graph, name)


def _check(graph: Graph, name: str) -> Stage[ScaleSettings]:
    return graph.stage(
        CHECK_STAGE, scale_settings(graph, name), needed_by_scale(graph, name), CHECK_STAGE.called(name)
    )


def check_scale(job: Job[ScaleSettings]) -> Notes:
    found = checked(job)
    job.save(CHECK, found)
    return {"real": found.real, "verdict": verdict(found)}


def checked(job: Job[Any]) -> Check:
    choice, rows = job.settings.estimator, job.load(COMPARISONS, "comparisons")
    units, names = units_of(rows, choice, job)
    seeds = [rows_of(rows, names, one, job.settings.length_normalized) for one in evidence_in(job)]

    def make() -> FrozenScale:
        estimator = make_estimator(choice.name, choice.settings)
        assert isinstance(estimator, FrozenScale)
        return estimator

    return check(make, units, seeds)


CHECK_STAGE = Kind("check", check_scale, version=3, wanted=checks)
