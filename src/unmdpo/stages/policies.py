"""Final policies: any objective, with a frozen scale, a joint one, or none; and their loss on the validation data.

Validation data is encoded, scored by the initial model and embedded by the same stages as the training data."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.core.settings import Strict
from unmdpo.data import Comparison
from unmdpo.engine.adapters import merge_weights, without_adapter
from unmdpo.engine.folder import Provenance, export_adapter, export_model
from unmdpo.engine.models import load_tokenizer
from unmdpo.engine.pairs.score import score
from unmdpo.engine.settings import ModelSource, ObjectiveChoice, TrainingSettings
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.loop import Validation
from unmdpo.engine.training.trainer import Trainer
from unmdpo.recipe.recipe import as_yaml
from unmdpo.scale import PolicyTimeScale, Rows, make_estimator
from unmdpo.scale.settings import GivenSettings
from unmdpo.scale.table import ESTIMATORS
from unmdpo.stages.data import (
    COMPARISONS_STAGE,
    ENCODED_STAGE,
    ValidationSettings,
    comparisons,
    encoded,
    save_validation,
    validation,
)
from unmdpo.stages.reference import features, reference
from unmdpo.stages.scales import EstimatorChoice, estimator_choice, scale, scale_of_rows, units_of
from unmdpo.stages.scoring import GRADED_STAGE, READ, TRAINED
from unmdpo.stages.shared.base import VALIDATED, Graph, Job, Kind, Notes, Stage
from unmdpo.stages.shared.estimates import Cost, Estimates
from unmdpo.stages.shared.files import ADAPTER, COMPARISONS, ESTIMATOR, METRICS, MODEL, PAIRS, POLICY_SCALE, REFERENCE
from unmdpo.stages.shared.training import TrainedModel, train_in, with_beta
from unmdpo.stages.shared.units import strengths, weights

PREFIX = "validation "  # of the inputs that validation needs, before the names of those of training
OF_DATA = (COMPARISONS_STAGE, GRADED_STAGE, ENCODED_STAGE)
TWINS = ("comparisons", "encoded", "reference", "features")


def validation_inputs(graph: Graph, inputs: Mapping[str, Stage[Any]]) -> dict[str, Stage[Any]]:
    """For a policy with these inputs. A frozen scale predicts q from the features that it was fitted with."""
    needed = dict(inputs)
    if "scale" in inputs and "features" in inputs["scale"].inputs:
        needed["features"] = inputs["scale"].inputs["features"]
    return {f"{PREFIX}{name}": _on_validation(graph, needed[name]) for name in TWINS if name in needed}


def _on_validation(graph: Graph, stage: Stage[Any]) -> Stage[Any]:
    """The same stage on the validation comparisons."""
    if stage.kind is GRADED_STAGE:
        inputs = {**stage.inputs, READ: _on_validation(graph, stage.inputs[READ]), TRAINED: stage}
        return graph.stage(stage.kind, stage.settings, inputs, f"{stage.name}{VALIDATED}")
    if stage.kind is COMPARISONS_STAGE:
        return graph.stage(PREFERENCES_STAGE, validation(graph).settings, {COMPARISONS_STAGE.name: stage})
    inputs = {
        name: _on_validation(graph, needed) if needed.kind in OF_DATA else needed
        for name, needed in stage.inputs.items()
    }
    return graph.stage(stage.kind, stage.settings, inputs, f"{stage.name}{VALIDATED}")


def read_preferences(job: Job[ValidationSettings]) -> Notes:
    """The validation rows without ties. Panels only take prompts from them; here their strengths count, so margins
    are cut where the training data's were."""
    trained = job.inputs[COMPARISONS_STAGE.name].manifest["notes"]["quantiles"]
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


def validation_of(job: Job[Any], joint: EstimatorChoice | None) -> Validation | None:
    """What a policy's training is watched with, if it is."""
    if f"{PREFIX}comparisons" not in job.inputs:
        return None
    rows, pairs = job.load(COMPARISONS, f"{PREFIX}comparisons"), job.load(PAIRS, f"{PREFIX}encoded")
    known = job.load(REFERENCE, f"{PREFIX}reference") if f"{PREFIX}reference" in job.inputs else None
    frozen = job.stage.inputs["scale"].settings.estimator if "scale" in job.inputs else None
    choice, weight = joint or frozen, weights(rows, torch.from_numpy(pairs.valid))
    data = TrainingData(pairs, strengths(rows), known, weight=weight)
    if choice is None:
        return Validation(data)
    features, training = job.inputs.get(f"{PREFIX}features"), job.load(COMPARISONS, "comparisons")
    units, names = units_of(rows, choice, features, training)
    if joint is not None:
        return Validation(replace(data, unit=names.of_row), units)
    q = ESTIMATOR.load(job.inputs["scale"]).predict(units)[names.of_row]
    return Validation(replace(data, scale=q))


PREFERENCES_STAGE = Kind("preferences", read_preferences)


class PolicySettings(Strict):
    model: ModelSource
    objective: ObjectiveChoice
    beta: float
    training: TrainingSettings
    joint: EstimatorChoice | None  # a scale trained with the policy


def policies(graph: Graph) -> None:
    for name in graph.recipe.trained:
        policy(graph, name)


def policy(graph: Graph, name: str) -> Stage[PolicySettings]:
    recipe, spec, model = graph.recipe, graph.recipe.trained[name], graph.recipe.model
    choice = recipe.choice_of(spec)
    inputs: dict[str, Stage[Any]] = {"comparisons": comparisons(graph), "encoded": encoded(graph, model)}
    training = recipe.seeded_training.with_overrides(spec.training)
    if choice.objective.reference:
        inputs["reference"] = reference(graph, model, training.adapter)
    joint = None
    if spec.scale is not None:
        is_joint = ESTIMATORS[recipe.scales[spec.scale].estimator].joint
        if is_joint and spec.scale not in graph.borrowed:
            inputs["features"] = features(graph)
            given = recipe.scale_settings(spec.scale)
            joint = _following(estimator_choice(graph, spec.scale), given, choice, training)
        else:
            inputs["scale"] = scale(graph, spec.scale)
    if training.validate_updates is not None:
        of_file = spec.scale is not None and isinstance(recipe.scales[spec.scale].resolved, GivenSettings)
        if of_file or spec.scale in graph.borrowed:
            raise UserError(
                f"policies.{name}: its scale is of another run or of a file, which predicts no q for validation data; "
                "leave out training.validate_updates"
            )
        inputs |= validation_inputs(graph, inputs)
    settings = PolicySettings(model=model, objective=choice, beta=recipe.beta, training=training, joint=joint)
    return graph.stage(POLICY_STAGE, settings, inputs, POLICY_STAGE.stage_name(name))


@dataclass(frozen=True)
class _JointScale:
    """A scale trained with the policy."""

    scale: PolicyTimeScale
    of_row: Tensor  # (n,) the unit of each row

    @classmethod
    def start(cls, rows: Sequence[Comparison], choice: EstimatorChoice, job: Job[PolicySettings]) -> "_JointScale":
        units, names = units_of(rows, choice, job.inputs.get("features"))
        estimator = make_estimator(choice.name, dict(choice.settings))
        assert isinstance(estimator, PolicyTimeScale)
        return cls(estimator.start(units, names.of_row), names.of_row)

    def finish(self, trainer: Trainer, job: Job[PolicySettings]) -> None:
        """Computes the scale's diagnostics from the final policy's evidence, and saves the scale."""
        data = trainer.data
        logps = score(trainer.scorer, data.pairs, job.compute.token_budget, job.report)
        evidence = trainer.evidence(list(range(len(data))), logps)
        valid = torch.from_numpy(data.pairs.valid)
        self.scale.finish(Rows(self.of_row, evidence, data.strength, valid, weight=data.weight))
        if trainer.ranks.first:
            job.save(POLICY_SCALE, self.scale)


def _following(
    choice: EstimatorChoice, given: Mapping[str, Any], policy: ObjectiveChoice, training: TrainingSettings
) -> EstimatorChoice:
    """The scale's settings as `given`, with those that the estimator takes from the policy filled in."""
    estimator = ESTIMATORS[choice.name]
    from_policy = dict(policy.resolved) | {"seed": training.random_seed, "placement": policy.objective.placement}
    followed = {name: from_policy[name] for name in estimator.follows}
    return choice.model_copy(update={"settings": estimator.resolve(followed | dict(given))})


def train_policy(job: Job[PolicySettings]) -> Notes:
    s, rows, pairs = job.settings, job.load(COMPARISONS, "comparisons"), job.load(PAIRS, "encoded")
    known = job.load(REFERENCE, "reference") if "reference" in job.inputs else None
    frozen = scale_of_rows(job.inputs["scale"], rows) if "scale" in job.inputs else None
    joint = None if s.joint is None else _JointScale.start(rows, s.joint, job)
    weight = weights(rows, torch.from_numpy(pairs.valid))
    data = TrainingData(pairs, strengths(rows), known, frozen, None if joint is None else joint.of_row, weight)
    choice = with_beta(s.objective, s.beta, pairs)
    trained = train_in(
        job,
        s.model,
        s.training,
        choice,
        data,
        None if joint is None else joint.scale,
        validation=validation_of(job, s.joint),
    )
    notes = trained.notes | {"settings": choice.settings}
    if joint is not None:
        joint.finish(trained.trainer, job)
        notes |= joint.scale.diagnostics_
    notes |= _export(trained, choice, frozen, job)
    return notes


def _export(trained: TrainedModel, choice: ObjectiveChoice, frozen: Tensor | None, job: Job[PolicySettings]) -> Notes:
    """Writes the policy; an adapter by itself, and merged too if the recipe says so."""
    s, adapter = job.settings, job.settings.training.adapter
    provenance = Provenance(
        name=job.stage.name,
        base_model=str(s.model.path),
        objective=choice.name,
        recipe=as_yaml(s.model_dump(mode="json")),
        data=_data_facts(trained, job),
        scale=_scale_facts(job, frozen),
        metrics=METRICS.read(job.folder / METRICS.name)[-1],
    )
    tokenizer, trainer = load_tokenizer(s.model), trained.trainer
    if trained.adapted is None:
        export_model(trainer.model, tokenizer, job.folder / MODEL.name, provenance)
        return {}
    assert adapter is not None
    masters, alone = trainer.masters.named, replace(provenance, library="peft")
    place = job.folder / (ADAPTER.name if adapter.merge else MODEL.name)
    export_adapter(trained.adapted, masters, tokenizer, place, alone)
    if not adapter.merge:
        return {}
    weights, rounding = merge_weights(trainer.model, masters)
    export_model(without_adapter(trainer.model), tokenizer, job.folder / MODEL.name, provenance, weights)
    return {"merge_rounding": rounding}


def _data_facts(trained: TrainedModel, job: Job[PolicySettings]) -> dict[str, object]:
    """What became of the rows: some are ties, or too long."""
    read, pairs = job.inputs["comparisons"], trained.trainer.data.pairs
    counts = {name: read.manifest["notes"][name] for name in ("read", "bad", "ties") if name in read.manifest["notes"]}
    lost = len(pairs) - int(pairs.valid.sum())
    return {
        **{f"rows: {name}": count for name, count in counts.items()},
        "training comparisons": len(pairs),
        "too long or empty": lost,
        "trained on": len(pairs) - lost,
        "artifact": read.digest,
    }


def _scale_facts(job: Job[PolicySettings], frozen: Tensor | None) -> dict[str, object]:
    if frozen is None:
        return {} if job.settings.joint is None else {"estimator": job.settings.joint.name}
    facts: dict[str, object] = {"artifact": job.inputs["scale"].digest}
    return facts | {"smallest q": float(frozen.min()), "largest q": float(frozen.max())}


def _cost(estimates: Estimates, stage: Stage[PolicySettings]) -> Cost:
    s = stage.settings
    return estimates.training(s.model, s.training, s.objective)


POLICY_STAGE = Kind("policy", train_policy, uses_model=True, ranked="by default", cost=_cost, wanted=policies)
