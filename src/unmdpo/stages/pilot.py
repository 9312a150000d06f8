"""Pilots: each comparison's values from a policy that never saw it.

There is one pilot for each fold of the prompts, trained on the others.
"""

import torch
from torch import Tensor

from unmdpo.core.errors import UserError
from unmdpo.engine.pairs.score import score
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.settings import ModelSource, ObjectiveChoice, TrainingSettings
from unmdpo.engine.text.encoded import EncodedPairs
from unmdpo.engine.training.data import TrainingData
from unmdpo.objectives import PairLogps, beta_ln_from_lengths
from unmdpo.stages.shared.base import Job, Kind, Notes
from unmdpo.stages.shared.files import COMPARISONS, EVIDENCE, HELD_OUT, PAIRS, REFERENCE, Evidence, HeldOut
from unmdpo.stages.shared.training import check_finite_logps, train_in, with_beta
from unmdpo.stages.shared.units import PromptIndex, strengths, weights


def train_pilot(
    job: Job,
    *,
    model: ModelSource,
    fold: int,
    folds: int,
    fold_seed: int,
    objective: ObjectiveChoice,
    beta: float,
    training: TrainingSettings,
) -> Notes:
    """Trains on all other folds, then scores its own fold; the weights are not kept."""
    rows = job.load(COMPARISONS, "comparisons")
    pairs = job.load(PAIRS, "encoded")
    index = PromptIndex.of(rows)
    is_held_out = (index.folds(folds, fold_seed) == fold)[index.of_row]  # (n,)
    if not is_held_out.any() or is_held_out.all():
        raise UserError(
            f"{job.stage.name}: {int(is_held_out.sum())} of {len(rows)} comparisons are held out; "
            "there are too few prompts for this many folds: lower pilots.folds"
        )
    inside = (~is_held_out).nonzero().flatten()
    outside = is_held_out.nonzero().flatten()
    reference = job.load(REFERENCE, "reference")[inside] if "reference" in job.inputs else None
    weight = weights(rows, torch.from_numpy(pairs.valid))
    data = TrainingData(
        _select(pairs, inside), strengths(rows)[inside], reference, weight=None if weight is None else weight[inside]
    )
    trained = train_in(job, model, training, with_beta(objective, beta, pairs), data)
    logps = score(trained.scorer, _select(pairs, outside), job.compute.token_budget, job.report)
    if Ranks.current().first:
        job.save(HELD_OUT, HeldOut(outside, logps))
    return trained.notes | {"held_out": len(outside)}


def _select(pairs: EncodedPairs, members: Tensor) -> EncodedPairs:
    return EncodedPairs.of(pairs.select(members.tolist()))


def gather_evidence(job: Job, *, beta: float) -> Notes:
    """Collects one score per comparison: sequence-level and length-normalized gaps, with masked rows kept and flagged
    ("OOF scoring mask")."""
    pairs = job.load(PAIRS, "encoded")
    reference = job.load(REFERENCE, "reference")  # (n, 2)
    valid = torch.from_numpy(pairs.valid)
    tokens = torch.from_numpy(pairs.scored).long()  # (n, 2)
    beta_ln = beta_ln_from_lengths(tokens[valid, 0], tokens[valid, 1], beta)
    logps = _held_out(job, len(pairs))
    check_finite_logps(logps, pairs, "the pilots")
    of_pairs = PairLogps(
        chosen=logps[:, 0],
        rejected=logps[:, 1],
        chosen_tokens=tokens[:, 0],
        rejected_tokens=tokens[:, 1],
        strength=torch.ones(len(pairs)),
        ref_chosen=reference[:, 0],
        ref_rejected=reference[:, 1],
    )
    evidence = Evidence(
        evidence=beta * of_pairs.log_ratio,
        evidence_ln=beta_ln * of_pairs.mean_log_ratio,
        valid=valid,
        mean_tokens=tokens.float().mean(dim=1),
        beta_ln=torch.tensor(beta_ln, dtype=torch.float64),
    )
    job.save(EVIDENCE, evidence)
    return {"valid": int(valid.sum()), "masked": int((~valid).sum()), "beta_ln": beta_ln}


def _held_out(job: Job, rows: int) -> Tensor:
    """(n, 2) every comparison's log-probabilities, from the pilot of its fold."""
    logps = torch.full((rows, 2), torch.nan)
    for role, stage in job.stage.inputs.items():
        if stage.kind is PILOT_STAGE:
            part = job.load(HELD_OUT, role)
            logps[part.rows] = part.logps
    return logps


PILOT_STAGE = Kind("pilot", train_pilot, uses_model=True, trains=True, ranked="by default")
OOF_STAGE = Kind("oof", gather_evidence)
