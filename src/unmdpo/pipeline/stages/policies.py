"""Final policies: any objective, with a frozen scale, a scale that learns beside the policy, or none."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unmdpo.catalog.estimators import ESTIMATORS
from unmdpo.data import Comparison
from unmdpo.engine.adapters import merged, without_adapter
from unmdpo.engine.folder import Provenance, export_adapter, export_model
from unmdpo.engine.models import load_tokenizer
from unmdpo.engine.pairs.score import score
from unmdpo.engine.settings import ObjectiveChoice, TrainingSettings
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.trainer import Trainer
from unmdpo.errors import UserError
from unmdpo.pipeline.artifacts import ADAPTER, COMPARISONS, METRICS, MODEL, PAIRS, POLICY_SCALE, REFERENCE
from unmdpo.pipeline.costs import Cost, Estimates
from unmdpo.pipeline.graph import Graph
from unmdpo.pipeline.stage import Job, Kind, Notes, PinnedModel, Stage
from unmdpo.pipeline.stages.convert import converted_model
from unmdpo.pipeline.stages.data import comparisons, encoded
from unmdpo.pipeline.stages.learning import Trained, train_in, with_beta
from unmdpo.pipeline.stages.reference import features, reference
from unmdpo.pipeline.stages.scales import EstimatorChoice, estimator_choice, scale, scale_of_rows, units_of
from unmdpo.pipeline.stages.validating import validation_inputs, validation_of
from unmdpo.pipeline.units import strengths
from unmdpo.recipe.recipe import as_yaml
from unmdpo.scale import Rows, ScaleBesidePolicy, make_estimator
from unmdpo.settings import Strict


class PolicySettings(Strict):
    model: PinnedModel
    objective: ObjectiveChoice
    beta: float
    training: TrainingSettings
    beside: EstimatorChoice | None  # a scale that learns beside the policy


def policies(graph: Graph) -> None:
    for name in graph.recipe.trained:
        policy(graph, name)


def policy(graph: Graph, name: str) -> Stage[PolicySettings]:
    recipe, spec, model = graph.recipe, graph.recipe.trained[name], graph.recipe.model
    inputs: dict[str, Stage[Any]] = {
        "comparisons": comparisons(graph),
        "encoded": encoded(graph, model),
        **converted_model(graph, model),
    }
    training = recipe.seeded_training.changed(spec.training)
    if spec.choice.objective.reference:
        inputs["reference"] = reference(graph, model, training.adapter)
    beside = None
    if spec.scale is not None:
        learns_beside = ESTIMATORS[recipe.scales[spec.scale].estimator].beside
        if learns_beside and spec.scale not in graph.borrowed:
            inputs["features"] = features(graph)
            beside = _following(estimator_choice(graph, spec.scale), spec.choice, training)
        else:
            inputs["scale"] = scale(graph, spec.scale)
    if training.validate_updates is not None:
        given = spec.scale is not None and ESTIMATORS[recipe.scales[spec.scale].estimator].files is not None
        if given or spec.scale in graph.borrowed:
            raise UserError(
                f"policies.{name}: its scale is of another run or of a file, which predicts no q for validation data; "
                "leave out training.validate_updates"
            )
        inputs |= validation_inputs(graph, inputs)
    settings = PolicySettings(
        model=graph.pinned(model), objective=spec.choice, beta=recipe.beta, training=training, beside=beside
    )
    return graph.stage(POLICY_STAGE, settings, inputs, POLICY_STAGE.called(name))


@dataclass(frozen=True)
class _Beside:
    """A scale that learns beside the policy."""

    scale: ScaleBesidePolicy
    of_row: Tensor  # (n,) the unit of each row

    @classmethod
    def start(cls, rows: Sequence[Comparison], choice: EstimatorChoice, job: Job[PolicySettings]) -> "_Beside":
        units, names = units_of(rows, choice, job.inputs.get("features"))
        estimator = make_estimator(choice.name, choice.settings)
        assert isinstance(estimator, ScaleBesidePolicy)
        return cls(estimator.start(units, names.of_row), names.of_row)

    def finish(self, trainer: Trainer, job: Job[PolicySettings]) -> None:
        """Computes the scale's diagnostics from the final policy's evidence, and saves the scale."""
        data = trainer.data
        logps = score(trainer.scorer, data.pairs, job.compute.token_budget, job.report)
        evidence = trainer.evidence(list(range(len(data))), logps)
        self.scale.finish(Rows(self.of_row, evidence, data.strength, torch.from_numpy(data.pairs.valid)))
        if trainer.ranks.first:
            job.save(POLICY_SCALE, self.scale)


def _following(choice: EstimatorChoice, policy: ObjectiveChoice, training: TrainingSettings) -> EstimatorChoice:
    """The scale's settings, with those that the estimator takes from the policy filled in."""
    from_policy = dict(policy.resolved) | {"seed": training.random_seed, "placement": policy.objective.placement}
    settings = {name: from_policy[name] for name in ESTIMATORS[choice.name].follows} | choice.settings
    return choice.model_copy(update={"settings": settings})


def train_policy(job: Job[PolicySettings]) -> Notes:
    s, rows, pairs = job.settings, job.load(COMPARISONS, "comparisons"), job.load(PAIRS, "encoded")
    known = job.load(REFERENCE, "reference") if "reference" in job.inputs else None
    frozen = scale_of_rows(job.inputs["scale"], rows) if "scale" in job.inputs else None
    beside = None if s.beside is None else _Beside.start(rows, s.beside, job)
    data = TrainingData(pairs, strengths(rows), known, frozen, None if beside is None else beside.of_row)
    choice = with_beta(s.objective, s.beta, pairs)
    trained = train_in(
        job,
        job.source(s.model),
        s.training,
        choice,
        data,
        None if beside is None else beside.scale,
        validation=validation_of(job, s.beside),
    )
    notes = trained.notes | {"settings": choice.settings}
    if beside is not None:
        beside.finish(trained.trainer, job)
        notes |= beside.scale.diagnostics_
    notes |= _export(trained, choice, frozen, job)
    return notes


def _export(trained: Trained, choice: ObjectiveChoice, frozen: Tensor | None, job: Job[PolicySettings]) -> Notes:
    """Writes the policy; an adapter by itself, and merged too if the recipe says so."""
    s, adapter = job.settings, job.settings.training.adapter
    provenance = Provenance(
        name=job.stage.name,
        base_model=s.model.path,
        objective=choice.name,
        recipe=as_yaml(s.model_dump(mode="json")),
        data=_data_facts(trained, job),
        scale=_scale_facts(job, frozen),
        metrics=METRICS.read(job.folder / METRICS.name)[-1],
    )
    tokenizer, trainer = load_tokenizer(job.source(s.model)), trained.trainer
    if trained.adapted is None:
        export_model(trainer.model, tokenizer, job.folder / MODEL.name, provenance)
        return {}
    assert adapter is not None
    masters, alone = trainer.masters.named, replace(provenance, library="peft")
    place = job.folder / (ADAPTER.name if adapter.merge else MODEL.name)
    export_adapter(trained.adapted, masters, tokenizer, place, alone)
    if not adapter.merge:
        return {}
    weights, rounding = merged(trained.adapted, masters)
    export_model(without_adapter(trainer.model), tokenizer, job.folder / MODEL.name, provenance, weights)
    return {"merge_rounding": rounding}


def _data_facts(trained: Trained, job: Job[PolicySettings]) -> dict[str, object]:
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
        return {} if job.settings.beside is None else {"estimator": job.settings.beside.name}
    facts: dict[str, object] = {"artifact": job.inputs["scale"].digest}
    return facts | {"smallest q": float(frozen.min()), "largest q": float(frozen.max())}


def _cost(estimates: Estimates, stage: Stage[PolicySettings]) -> Cost:
    s = stage.settings
    return estimates.training(s.model, s.training, s.objective)


POLICY_STAGE = Kind(
    "policy", train_policy, version=2, uses_model=True, ranked="by default", cost=_cost, wanted=policies
)
