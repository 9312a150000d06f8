"""Final policies: any objective, with a frozen scale, a joint one, or none; and their loss on the validation data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmdpo.core.errors import UserError
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
from unmdpo.stages.shared.base import Job, Kind, Notes
from unmdpo.stages.shared.files import (
    ADAPTER,
    COMPARISONS,
    ESTIMATOR,
    METRICS,
    MODEL,
    PAIRS,
    POLICY_SCALE,
    REFERENCE,
    SCALES,
)
from unmdpo.stages.shared.training import TrainedModel, train_in, with_beta
from unmdpo.stages.shared.units import EstimatorChoice, pair_hash, strengths, units_of, weights
from unmdpo.store.artifact import Artifact

FOR_VALIDATION = "validation "  # begins the names of inputs that training is watched with


def train_policy(
    job: Job,
    *,
    model: ModelSource,
    objective: ObjectiveChoice,
    beta: float,
    training: TrainingSettings,
    joint: EstimatorChoice | None,
) -> Notes:
    """Trains a policy from the model, with the recipe's β unless the objective has its own; `joint` is a scale that is
    trained with it."""
    rows = job.load(COMPARISONS, "comparisons")
    pairs = job.load(PAIRS, "encoded")
    reference = job.load(REFERENCE, "reference") if "reference" in job.inputs else None
    frozen_scale = scale_of_rows(job.inputs["scale"], rows) if "scale" in job.inputs else None
    joint_scale = None if joint is None else _JointScale.start(rows, joint, job)
    data = TrainingData(
        pairs,
        strengths(rows),
        reference,
        frozen_scale,
        None if joint_scale is None else joint_scale.of_row,
        weights(rows, torch.from_numpy(pairs.valid)),
    )
    choice = with_beta(objective, beta, pairs)
    trained = train_in(
        job,
        model,
        training,
        choice,
        data,
        None if joint_scale is None else joint_scale.scale,
        validation=validation_of(job, joint),
    )
    notes = trained.notes | {"settings": choice.settings}
    if joint_scale is not None:
        joint_scale.finish(trained.trainer, job)
        notes |= joint_scale.scale.diagnostics_
    return notes | _export(trained, choice, frozen_scale, job)


def validation_of(job: Job, joint: EstimatorChoice | None) -> Validation | None:
    """What a policy's training is watched with, if it is."""
    if f"{FOR_VALIDATION}comparisons" not in job.inputs:
        return None
    rows = job.load(COMPARISONS, f"{FOR_VALIDATION}comparisons").without_ties()
    pairs = job.load(PAIRS, f"{FOR_VALIDATION}encoded")
    has_reference = f"{FOR_VALIDATION}reference" in job.inputs
    reference = job.load(REFERENCE, f"{FOR_VALIDATION}reference") if has_reference else None
    frozen = job.stage.inputs["scale"].settings.estimator if "scale" in job.inputs else None
    data = TrainingData(pairs, strengths(rows), reference, weight=weights(rows, torch.from_numpy(pairs.valid)))
    choice: EstimatorChoice | None = joint or frozen
    if choice is None:
        return Validation(data)
    features = job.inputs.get(f"{FOR_VALIDATION}features")
    units, names = units_of(rows, choice, features, job.load(COMPARISONS, "comparisons"))
    if joint is not None:
        return Validation(replace(data, unit=names.of_row), units)
    q = ESTIMATOR.load(job.inputs["scale"]).predict(units)[names.of_row]
    return Validation(replace(data, scale=q))


def scale_of_rows(artifact: Artifact, rows: Sequence[Comparison]) -> Tensor:
    """(n,) the frozen q of each row, looked up by the row's content, so another run's scale works too."""
    table = SCALES.load(artifact)
    known = dict(zip(zip(table.prompt_hash, table.pair_hash, strict=True), table.q, strict=True))
    of_pairs = any(table.pair_hash)
    names = [(row.prompt_hash, pair_hash(row) if of_pairs else "") for row in rows]
    missing = [row for row, name in zip(rows, names, strict=True) if name not in known]
    if missing:
        raise UserError(f"the scale in {artifact.path} does not cover {len(missing)} rows; first: {missing[0].source}")
    return torch.tensor([known[name] for name in names])


@dataclass(frozen=True)
class _JointScale:
    """A scale trained with the policy."""

    scale: PolicyTimeScale
    of_row: Tensor  # (n,) the unit of each row

    @classmethod
    def start(cls, rows: Sequence[Comparison], choice: EstimatorChoice, job: Job) -> "_JointScale":
        units, names = units_of(rows, choice, job.inputs.get("features"))
        estimator = make_estimator(choice.name, dict(choice.settings))
        assert isinstance(estimator, PolicyTimeScale)
        return cls(estimator.start(units, names.of_row), names.of_row)

    def finish(self, trainer: Trainer, job: Job) -> None:
        """Computes the scale's diagnostics from the final policy's evidence, and saves the scale."""
        data = trainer.data
        logps = score(trainer.scorer, data.pairs, job.compute.token_budget, job.report)
        evidence = trainer.evidence(list(range(len(data))), logps)
        valid = torch.from_numpy(data.pairs.valid)
        self.scale.finish(Rows(self.of_row, evidence, data.strength, valid, weight=data.weight))
        if trainer.ranks.first:
            job.save(POLICY_SCALE, self.scale)


def _export(trained: TrainedModel, choice: ObjectiveChoice, frozen_scale: Tensor | None, job: Job) -> Notes:
    """Writes the policy; an adapter by itself, and merged too if the recipe says so."""
    settings = job.stage.settings
    provenance = Provenance(
        name=job.stage.name,
        base_model=str(settings.model.path),
        objective=choice.name,
        recipe=as_yaml(settings.model_dump(mode="json")),
        data=_data_facts(trained, job),
        scale=_scale_facts(job, frozen_scale),
        metrics=METRICS.read(job.folder / METRICS.name)[-1],
    )
    tokenizer = load_tokenizer(settings.model)
    trainer = trained.trainer
    if trained.adapted is None:
        export_model(trainer.model, tokenizer, job.folder / MODEL.name, provenance)
        return {}
    is_merged = settings.training.adapter.merge
    masters = trainer.masters.named
    folder = job.folder / (ADAPTER.name if is_merged else MODEL.name)
    export_adapter(trained.adapted, masters, tokenizer, folder, replace(provenance, library="peft"))
    if not is_merged:
        return {}
    merged, rounding = merge_weights(trainer.model, masters)
    export_model(without_adapter(trainer.model), tokenizer, job.folder / MODEL.name, provenance, merged)
    return {"merge_rounding": rounding}


def _data_facts(trained: TrainedModel, job: Job) -> dict[str, object]:
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


def _scale_facts(job: Job, frozen_scale: Tensor | None) -> dict[str, object]:
    if frozen_scale is not None:
        smallest, largest = float(frozen_scale.min()), float(frozen_scale.max())
        return {"artifact": job.inputs["scale"].digest, "smallest q": smallest, "largest q": largest}
    joint = job.stage.settings.joint
    return {} if joint is None else {"estimator": joint.name}


POLICY_STAGE = Kind("policy", train_policy, uses_model=True, trains=True, ranked="by default")
