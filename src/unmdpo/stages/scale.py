"""Prompt scales: q for every training prompt (or pair), fitted once and frozen, and a check of each."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from unmdpo.core.errors import UnmdpoWarning
from unmdpo.core.margins import StrengthMap
from unmdpo.data import Comparison
from unmdpo.scale import FrozenScale, Rows, make_estimator
from unmdpo.scale.check import OwnGain, check, verdict
from unmdpo.scale.settings import MarginSettings
from unmdpo.stages.pilot import OOF_STAGE
from unmdpo.stages.shared.base import Job, Kind, Notes, Stage
from unmdpo.stages.shared.files import CHECK, COMPARISONS, ESTIMATOR, EVIDENCE, SCALES, Evidence, ScaleTable
from unmdpo.stages.shared.units import EstimatorChoice, UnitNames, strengths, units_of, vote_counts, weights


def fit_scale(job: Job, *, estimator: EstimatorChoice, length_normalized: bool, beta: float | None) -> Notes:
    """Fits a scale to the pilots' evidence and freezes it. `beta` is that of the policies where it is their own; else
    None, as the evidence was gathered."""
    rows = job.load(COMPARISONS, "comparisons")
    units, names = units_of(rows, estimator, job.inputs.get("features"))
    fitted = make_estimator(estimator.name, dict(estimator.settings))
    assert isinstance(fitted, FrozenScale)
    fitted.fit(units, _evidence(rows, names, job))
    if fitted.diagnostics_.get("constant"):
        message = f"{job.stage.name}: on prompts it has not seen, nothing beats q ≡ 1, so q ≡ 1 is used"
        warnings.warn(message, UnmdpoWarning, stacklevel=2)
    job.save(ESTIMATOR, fitted)
    job.save(SCALES, ScaleTable(names.prompts, names.pairs, fitted.q_.double().tolist()))
    return {"units": len(units), **fitted.diagnostics_}


def evidence_in(job: Job) -> list[Evidence]:
    """The out-of-fold values among a job's inputs, one for each seed of the pilots; none without pilots."""
    return [job.load(EVIDENCE, role) for role, stage in job.stage.inputs.items() if stage.kind is OOF_STAGE]


def _evidence(rows: Sequence[Comparison], names: UnitNames, job: Job) -> Rows:
    seeds = evidence_in(job)
    if not seeds:  # an estimator without pilots
        zeros = torch.zeros(len(rows))
        return Rows(names.of_row, zeros, strengths(rows), votes=vote_counts(rows))
    return rows_of(rows, names, Evidence.mean(seeds), job)


def rows_of(rows: Sequence[Comparison], names: UnitNames, evidence: Evidence, job: Job) -> Rows:
    return Rows(
        unit=names.of_row,
        evidence=evidence_with_beta(evidence, job.stage),
        strength=strengths(rows),
        valid=evidence.valid,
        votes=vote_counts(rows),
        lengths=evidence.mean_tokens,
        weight=weights(rows, evidence.valid),
    )


def evidence_with_beta(evidence: Evidence, scale: Stage) -> Tensor:
    """(n,) β·A with the β of the policies that use the scale; it was gathered with the recipe's."""
    values = evidence.of(scale.settings.length_normalized)
    beta: float | None = scale.settings.beta
    if beta is None:
        return values
    gathered: float = next(stage.settings.beta for stage in scale.inputs.values() if stage.kind is OOF_STAGE)
    return values * (beta / (float(evidence.beta_ln) if scale.settings.length_normalized else gathered))


def residuals(rows: Sequence[Comparison], evidence: Evidence, scale: Stage) -> Tensor:
    """(n,) the margin residuals τ·m(k) − β·A that a scale was fitted to."""
    settings = scale.settings.estimator.settings
    assert isinstance(settings, MarginSettings)
    margin: Tensor = settings.tau * StrengthMap(settings.levels).of(strengths(rows))
    return margin - evidence_with_beta(evidence, scale)


def check_scale(job: Job, *, estimator: EstimatorChoice, length_normalized: bool, beta: float | None) -> Notes:
    """Checks a fitted scale on prompts that it has not seen; its settings are those of the scale."""
    rows = job.load(COMPARISONS, "comparisons")
    units, names = units_of(rows, estimator, job.inputs.get("features"))
    seeds = [rows_of(rows, names, evidence, job) for evidence in evidence_in(job)]
    diagnostics = job.load(ESTIMATOR, SCALE_STAGE.name).diagnostics_
    own = OwnGain(diagnostics["own_gain"], diagnostics["own_chance"]) if diagnostics.get("own_gain") else None

    def make() -> FrozenScale:
        unfitted = make_estimator(estimator.name, dict(estimator.settings))
        assert isinstance(unfitted, FrozenScale)
        return unfitted

    result = check(make, units, seeds, own)
    job.save(CHECK, result)
    return {"finding": result.finding, "verdict": verdict(result)}


SCALE_STAGE = Kind("scale", fit_scale)
CHECK_STAGE = Kind("check", check_scale)
