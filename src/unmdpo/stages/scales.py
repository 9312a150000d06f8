"""Prompt scales: q for every training prompt (or pair), fitted once and frozen, and a check of each."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import SerializeAsAny
from torch import Tensor

from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.core.margins import StrengthMap
from unmdpo.core.settings import Strict
from unmdpo.data import Comparison, Prompt
from unmdpo.data.panels import read_scales
from unmdpo.objectives.table import OBJECTIVES
from unmdpo.recipe import Recipe
from unmdpo.scale import FrozenScale, Rows, Units, make_estimator
from unmdpo.scale.check import OwnGain, check, verdict
from unmdpo.scale.features import DIMENSION, count_sketch, pair_features, wide_features
from unmdpo.scale.settings import EstimatorSettings, GivenSettings, MarginSettings
from unmdpo.scale.table import ESTIMATORS
from unmdpo.stages.data import comparisons
from unmdpo.stages.pilots import OOF_STAGE, evidence_in, out_of_fold
from unmdpo.stages.reference import features
from unmdpo.stages.shared.base import Graph, Job, Kind, Notes, Stage
from unmdpo.stages.shared.files import CHECK, COMPARISONS, EMBEDDINGS, ESTIMATOR, PROMPTS, SCALES, Evidence, ScaleTable
from unmdpo.stages.shared.units import UnitNames, pair_hash, strengths, vote_counts, weights
from unmdpo.store.artifact import Artifact


class EstimatorChoice(Strict):
    """An estimator with its settings, and the units it is fitted to."""

    name: str
    settings: SerializeAsAny[EstimatorSettings]
    unit: str
    folds: int
    fold_seed: int
    domains: bool


class ScaleSettings(Strict):
    estimator: EstimatorChoice
    length_normalized: bool
    beta: float | None  # of the policies' own; None: as the evidence was gathered


def scales(graph: Graph) -> None:
    """Adds every scale in the recipe that is fitted before the policies."""
    for name, spec in graph.recipe.scales.items():
        if not ESTIMATORS[spec.estimator].joint and name not in graph.borrowed:
            scale(graph, name)


def scale(graph: Graph, name: str) -> Stage[Any]:
    if name in graph.borrowed:
        return graph.borrowed[name]
    spec, estimator = graph.recipe.scales[name], ESTIMATORS[graph.recipe.scales[name].estimator]
    inputs: dict[str, Stage[Any]] = {"comparisons": comparisons(graph)}
    if estimator.features:
        inputs["features"] = features(graph)
    if estimator.pilots:
        inputs |= out_of_fold(graph)
    settings = ScaleSettings(
        estimator=estimator_choice(graph, name),
        length_normalized=spec.length_normalized,
        beta=spec.beta if estimator.pilots else None,
    )
    return graph.stage(SCALE_STAGE, settings, inputs, SCALE_STAGE.stage_name(name))


def check_shared_margin(recipe: Recipe, scale: str, fitted: Stage[Any]) -> None:
    """Raises if a policy scores with another margin, β or kind of log-ratio than a borrowed scale was fitted with"""
    settings = fitted.settings
    if not isinstance(settings, ScaleSettings) or not isinstance(settings.estimator.settings, MarginSettings):
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


def estimator_choice(graph: Graph, name: str) -> EstimatorChoice:
    spec, pilots = graph.recipe.scales[name], graph.recipe.pilots
    return EstimatorChoice(
        name=spec.estimator,
        settings=ESTIMATORS[spec.estimator].resolve(graph.recipe.scale_settings(name)),
        unit=spec.resolved.unit,
        folds=pilots.folds,
        fold_seed=pilots.fold_seed,
        domains=spec.domains,
    )


def fit_scale(job: Job[ScaleSettings]) -> Notes:
    rows, choice = job.load(COMPARISONS, "comparisons"), job.settings.estimator
    units, names = units_of(rows, choice, job.inputs.get("features"))
    estimator = make_estimator(choice.name, dict(choice.settings))
    assert isinstance(estimator, FrozenScale)
    estimator.fit(units, _evidence(rows, names, job))
    if estimator.diagnostics_.get("constant"):
        what = f"{job.stage.name}: on prompts it has not seen, nothing beats q ≡ 1, so q ≡ 1 is used"
        warnings.warn(what, UnmdpoWarning, stacklevel=2)
    job.save(ESTIMATOR, estimator)
    job.save(SCALES, ScaleTable(names.prompts, names.pairs, estimator.q_.double().tolist()))
    return {"units": len(units), **estimator.diagnostics_}


def units_of(
    rows: Sequence[Comparison],
    choice: EstimatorChoice,
    features: Artifact | None,
    fitted_to: Sequence[Comparison] | None = None,
) -> tuple[Units, UnitNames]:
    """Features, domains and folds of the units that an estimator uses. Domains are numbered as in the rows that it is
    fitted to, if those are others."""
    names = UnitNames(rows, choice.unit)
    index, prompt_of = names.index, names.index.of_row[names.first_row]
    known, settings = torch.zeros(len(index.hashes), DIMENSION), choice.settings
    if isinstance(settings, GivenSettings):
        known = _given(settings, index.hashes)
    if features is not None:
        embeddings = _embeddings(features, index.hashes)
        known = features_for(settings, embeddings, index.prompts(rows))
    inputs = known[prompt_of]
    if choice.unit == "pair":
        pairs = [rows[row].pair for row in names.first_row]
        inputs = pair_features(inputs, [a for a, _ in pairs], [b for _, b in pairs])
    own_folds = ESTIMATORS[choice.name].own_folds
    folds = index.entropy_folds(choice.folds) if own_folds else index.folds(choice.folds, choice.fold_seed)
    domains = index.domains(rows, fitted_to or rows)[prompt_of] if choice.domains else torch.zeros_like(prompt_of)
    return Units(inputs, domains, folds[prompt_of]), names


def features_for(settings: EstimatorSettings, embeddings: Tensor, prompts: Sequence[Prompt]) -> Tensor:
    """What an estimator knows about prompts: the paper's sketch of their embeddings, or more."""
    if getattr(settings, "features", "sketch") == "sketch":
        return count_sketch(embeddings)
    return wide_features(embeddings, ["\n".join(message.content for message in prompt) for prompt in prompts])


def _given(settings: GivenSettings, hashes: list[str]) -> Tensor:
    """(u, 1) log q from a file."""
    scales = read_scales(Path(settings.path))
    missing = [name for name in hashes if name not in scales]
    if missing:
        raise UserError(
            f"{settings.path}: no q for {len(missing)} of {len(hashes)} prompts, such as the one with "
            f"prompt_hash {missing[0]}"
        )
    return torch.tensor([scales[name] for name in hashes]).log()[:, None]


def _embeddings(artifact: Artifact, hashes: list[str]) -> Tensor:
    known = {name: place for place, name in enumerate(PROMPTS.load(artifact))}
    missing = [name for name in hashes if name not in known]
    if missing:
        raise UserError(f"{artifact.path}: no features for {len(missing)} prompts, such as {missing[0][:12]}…")
    return EMBEDDINGS.load(artifact)[[known[name] for name in hashes]]


def _evidence(rows: Sequence[Comparison], names: UnitNames, job: Job[ScaleSettings]) -> Rows:
    seeds = evidence_in(job)
    if not seeds:  # an estimator without pilots
        zeros = torch.zeros(len(rows))
        return Rows(names.of_row, zeros, strengths(rows), votes=vote_counts(rows))
    return rows_of(rows, names, Evidence.mean(seeds), job)


def rows_of(rows: Sequence[Comparison], names: UnitNames, evidence: Evidence, job: Job[ScaleSettings]) -> Rows:
    return Rows(
        unit=names.of_row,
        evidence=evidence_with_beta(evidence, job.stage),
        strength=strengths(rows),
        valid=evidence.valid,
        votes=vote_counts(rows),
        lengths=evidence.mean_tokens,
        weight=weights(rows, evidence.valid),
    )


def evidence_with_beta(evidence: Evidence, scale: Stage[ScaleSettings]) -> Tensor:
    """(n,) β·A with the β of the policies that use the scale; it was gathered with the recipe's."""
    values, beta = evidence.of(scale.settings.length_normalized), scale.settings.beta
    if beta is None:
        return values
    gathered = next(stage.settings.beta for stage in scale.inputs.values() if stage.kind is OOF_STAGE)
    return values * (beta / (float(evidence.beta_ln) if scale.settings.length_normalized else gathered))


def residuals(rows: Sequence[Comparison], evidence: Evidence, scale: Stage[ScaleSettings]) -> Tensor:
    """(n,) the margin residuals τ·m(k) − β·A that a scale was fitted to."""
    settings = scale.settings.estimator.settings
    assert isinstance(settings, MarginSettings)
    margin: Tensor = settings.tau * StrengthMap(settings.levels).of(strengths(rows))
    return margin - evidence_with_beta(evidence, scale)


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


SCALE_STAGE = Kind("scale", fit_scale, wanted=scales)


def checks(graph: Graph) -> None:
    """Adds a check of every scale that is fitted to pilots in this run."""
    for name, spec in graph.recipe.scales.items():
        estimator = ESTIMATORS[spec.estimator]
        of_margins = issubclass(estimator.settings, MarginSettings)  # others have no residuals to be checked on
        of_prompts = spec.unit == "prompt"  # pairs of one prompt are alike, so they cannot be permuted
        if estimator.pilots and of_margins and not estimator.joint and of_prompts and name not in graph.borrowed:
            _check(graph, name)


def _check(graph: Graph, name: str) -> Stage[ScaleSettings]:
    fitted = scale(graph, name)
    return graph.stage(
        CHECK_STAGE, fitted.settings, {**fitted.inputs, SCALE_STAGE.name: fitted}, CHECK_STAGE.stage_name(name)
    )


def check_scale(job: Job[ScaleSettings]) -> Notes:
    choice, rows = job.settings.estimator, job.load(COMPARISONS, "comparisons")
    units, names = units_of(rows, choice, job.inputs.get("features"))
    seeds = [rows_of(rows, names, one, job) for one in evidence_in(job)]
    found = job.load(ESTIMATOR, SCALE_STAGE.name).diagnostics_
    own = OwnGain(found["own_gain"], found["own_chance"]) if found.get("own_gain") else None

    def make() -> FrozenScale:
        estimator = make_estimator(choice.name, dict(choice.settings))
        assert isinstance(estimator, FrozenScale)
        return estimator

    result = check(make, units, seeds, own)
    job.save(CHECK, result)
    return {"finding": result.finding, "verdict": verdict(result)}


CHECK_STAGE = Kind("check", check_scale, wanted=checks)
