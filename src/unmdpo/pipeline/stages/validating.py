"""Watching a policy's training: its loss on the validation data, every so many updates.

That data is encoded, scored by the initial model and embedded as the training data is, by the same stages with other
rows."""

import warnings
from collections.abc import Mapping
from typing import Any

from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.loop import Validation
from unmdpo.errors import UnmdpoWarning, UserError
from unmdpo.pipeline.artifacts import COMPARISONS, ESTIMATOR, PAIRS, REFERENCE
from unmdpo.pipeline.graph import Graph
from unmdpo.pipeline.stage import VALIDATED, Job, Kind, Notes, Stage
from unmdpo.pipeline.stages.data import (
    COMPARISONS_STAGE,
    ENCODED_STAGE,
    ValidationSettings,
    save_validation,
    validation,
)
from unmdpo.pipeline.stages.loaded import Loaded
from unmdpo.pipeline.stages.scales import EstimatorChoice, units_of
from unmdpo.pipeline.units import strengths

PREFIX = "validation "  # of the inputs that validation needs, before the names of those of training
TWINS = ("comparisons", "encoded", "reference", "features")


def validation_inputs(graph: Graph, inputs: Mapping[str, Stage[Any]]) -> dict[str, Stage[Any]]:
    """For a policy with these inputs. A frozen scale predicts q from the features that it was fitted with."""
    needed = dict(inputs)
    if "scale" in inputs and "features" in inputs["scale"].inputs:
        needed["features"] = inputs["scale"].inputs["features"]
    return {f"{PREFIX}{name}": _on_validation(graph, needed[name]) for name in TWINS if name in needed}


def _on_validation(graph: Graph, stage: Stage[Any]) -> Stage[Any]:
    """The same stage on the validation comparisons."""
    if stage.kind is COMPARISONS_STAGE:
        return graph.stage(PREFERENCES_STAGE, validation(graph).settings, {COMPARISONS_STAGE.name: stage})
    inputs = {
        name: _on_validation(graph, needed) if needed.kind in (COMPARISONS_STAGE, ENCODED_STAGE) else needed
        for name, needed in stage.inputs.items()
    }
    return graph.stage(stage.kind, stage.settings, inputs, f"{stage.name}{VALIDATED}")


def read_preferences(job: Job[ValidationSettings]) -> Notes:
    """The validation rows without ties. Panels only take prompts from them; here their strengths count, so margins
    are cut where the training data's were."""
    trained = job.inputs[COMPARISONS_STAGE.name].manifest["notes"].get("quantiles")
    if trained is None:  # read by a version that did not note it
        with Loaded.of(job, job.settings.parts) as loaded:
            trained = loaded.notes["quantiles"]
    quantiles = {part: tuple(values) for part, values in trained.items()}
    notes = save_validation(job, COMPARISONS, ties=False, quantiles=quantiles)
    own = {part for part, values in notes["quantiles"].items() if list(values) != list(trained.get(part, ()))}
    if own:
        warnings.warn(
            "the strengths of the validation comparisons are cut at quantiles of their own margins, not of the "
            "training data's: give both the same strength.thresholds",
            UnmdpoWarning,
            stacklevel=2,
        )
    if not notes["rows"]:
        raise UserError("all validation comparisons are ties: leave out training.validate_updates, or give others")
    return {**notes, "comparisons": notes["rows"]}


def validation_of(job: Job[Any], beside: EstimatorChoice | None) -> Validation | None:
    """What a policy's training is watched with, if it is."""
    if f"{PREFIX}comparisons" not in job.inputs:
        return None
    rows, pairs = job.load(COMPARISONS, f"{PREFIX}comparisons"), job.load(PAIRS, f"{PREFIX}encoded")
    known = job.load(REFERENCE, f"{PREFIX}reference") if f"{PREFIX}reference" in job.inputs else None
    frozen = job.stage.inputs["scale"].settings.estimator if "scale" in job.inputs else None
    choice = beside or frozen
    if choice is None:
        return Validation(TrainingData(pairs, strengths(rows), known))
    features, training = job.inputs.get(f"{PREFIX}features"), job.load(COMPARISONS, "comparisons")
    units, names = units_of(rows, choice, features, training)
    if beside is not None:
        return Validation(TrainingData(pairs, strengths(rows), known, None, names.of_row), units)
    q = ESTIMATOR.load(job.inputs["scale"]).predict(units)[names.of_row]
    return Validation(TrainingData(pairs, strengths(rows), known, q))


PREFERENCES_STAGE = Kind("preferences", read_preferences, version=2)
