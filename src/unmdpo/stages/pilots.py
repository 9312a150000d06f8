"""Pilots: each comparison's values from a policy that never saw it.

There is one pilot for each fold of the prompts, trained on the others.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unmdpo.core.errors import UserError
from unmdpo.core.settings import Strict
from unmdpo.engine.pairs.score import score
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.settings import ModelSource, ObjectiveChoice, TrainingSettings
from unmdpo.engine.text.encoded import EncodedPairs
from unmdpo.engine.training.data import TrainingData
from unmdpo.objectives import PairLogps, beta_ln_from_lengths
from unmdpo.recipe.seeds import with_seed
from unmdpo.stages.data import comparisons, encoded
from unmdpo.stages.reference import pilot_model, reference
from unmdpo.stages.shared.base import Graph, Job, Kind, Notes, Stage
from unmdpo.stages.shared.estimates import Cost, Estimates
from unmdpo.stages.shared.files import COMPARISONS, EVIDENCE, HELD_OUT, PAIRS, REFERENCE, Evidence, HeldOut
from unmdpo.stages.shared.training import check_finite_logps, train_in, with_beta
from unmdpo.stages.shared.units import PromptIndex, strengths, weights


class PilotSettings(Strict):
    model: ModelSource
    fold: int
    folds: int
    fold_seed: int
    objective: ObjectiveChoice
    beta: float
    training: TrainingSettings


class OofSettings(Strict):
    beta: float


def pilot(graph: Graph, fold: int, seed: int | None) -> Stage[PilotSettings]:
    recipe, (model, suffix) = graph.recipe, pilot_model(graph)
    pilots, choice = recipe.pilots, ObjectiveChoice(name=recipe.pilots.objective, settings=recipe.pilot_settings)
    training = recipe.seeded_training.with_overrides(pilots).without_validation
    settings = PilotSettings(
        model=model,
        fold=fold,
        folds=pilots.folds,
        fold_seed=pilots.fold_seed,
        objective=choice,
        beta=recipe.beta,
        training=training if seed is None else training.model_copy(update={"seed": seed}),
    )
    inputs: dict[str, Stage[Any]] = {"comparisons": comparisons(graph), "encoded": encoded(graph, model, suffix)}
    if choice.objective.reference:
        inputs["reference"] = reference(graph, model, settings.training.adapter, suffix)
    name = PILOT_STAGE.stage_name(fold if seed is None else with_seed(str(fold), seed))
    return graph.stage(PILOT_STAGE, settings, inputs, name)


def out_of_fold(graph: Graph) -> dict[str, Stage[OofSettings]]:
    """Input name → out-of-fold values: `oof`, or one for each seed of the pilots."""
    seeds = graph.recipe.pilots.seeds
    if not seeds:
        return {OOF_STAGE.name: _out_of_fold(graph, None)}
    return {with_seed(OOF_STAGE.name, seed): _out_of_fold(graph, seed) for seed in seeds}


def evidence_in(job: Job[Any]) -> list[Evidence]:
    """The out-of-fold values among a job's inputs, one for each seed of the pilots; none without pilots."""
    return [job.load(EVIDENCE, name) for name, stage in job.stage.inputs.items() if stage.kind is OOF_STAGE]


def _out_of_fold(graph: Graph, seed: int | None) -> Stage[OofSettings]:
    model, suffix = pilot_model(graph)
    pilots = [pilot(graph, fold, seed) for fold in range(graph.recipe.pilots.folds)]
    inputs: dict[str, Stage[Any]] = {
        "encoded": encoded(graph, model, suffix),
        "reference": reference(graph, model, pilots[0].settings.training.adapter, suffix),
        **{stage.name: stage for stage in pilots},
    }
    name = OOF_STAGE.name if seed is None else OOF_STAGE.stage_name(seed)
    return graph.stage(OOF_STAGE, OofSettings(beta=graph.recipe.beta), inputs, name)


def train_pilot(job: Job[PilotSettings]) -> Notes:
    """Trains on all other folds, then scores its own fold; the weights are not kept."""
    s, rows, pairs = job.settings, job.load(COMPARISONS, "comparisons"), job.load(PAIRS, "encoded")
    index = PromptIndex.of(rows)
    held_out = (index.folds(s.folds, s.fold_seed) == s.fold)[index.of_row]
    if not held_out.any() or held_out.all():
        raise UserError(
            f"{job.stage.name}: {int(held_out.sum())} of {len(rows)} comparisons are held out; "
            "there are too few prompts for this many folds: lower pilots.folds"
        )
    inside, outside = ((mask).nonzero().flatten() for mask in (~held_out, held_out))
    known = job.load(REFERENCE, "reference")[inside] if "reference" in job.inputs else None
    weight = weights(rows, torch.from_numpy(pairs.valid))
    data = TrainingData(
        _select(pairs, inside), strengths(rows)[inside], known, weight=None if weight is None else weight[inside]
    )
    choice = with_beta(s.objective, s.beta, pairs)
    trained = train_in(job, s.model, s.training, choice, data)
    logps = score(trained.scorer, _select(pairs, outside), job.compute.token_budget, job.report)
    if Ranks.current().first:
        job.save(HELD_OUT, HeldOut(outside, logps))
    return trained.notes | {"held_out": len(outside)}


def _select(pairs: EncodedPairs, members: torch.Tensor) -> EncodedPairs:
    return EncodedPairs.of(pairs.select(members.tolist()))


def gather_evidence(job: Job[OofSettings]) -> Notes:
    """Collects one score per comparison: sequence-level and length-normalized gaps, with masked rows kept and flagged
    ("OOF scoring mask")."""
    pairs, known, beta = job.load(PAIRS, "encoded"), job.load(REFERENCE, "reference"), job.settings.beta
    valid, tokens = torch.from_numpy(pairs.valid), torch.from_numpy(pairs.scored).long()
    beta_ln = beta_ln_from_lengths(tokens[valid, 0], tokens[valid, 1], beta)

    def gaps(logps: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) β₀·A and (n,) β_LN·A^LN."""
        check_finite_logps(logps, pairs, "the pilots")
        of_pairs = PairLogps(
            chosen=logps[:, 0], rejected=logps[:, 1], chosen_tokens=tokens[:, 0], rejected_tokens=tokens[:, 1],
            strength=torch.ones(len(pairs)), ref_chosen=known[:, 0], ref_rejected=known[:, 1],
        )  # fmt: skip
        return beta * of_pairs.log_ratio, beta_ln * of_pairs.mean_log_ratio

    values = gaps(_held_out(job, len(pairs)))
    mean_tokens = tokens.float().mean(dim=1)
    job.save(EVIDENCE, Evidence(*values, valid, mean_tokens, torch.tensor(beta_ln, dtype=torch.float64)))
    return {"valid": int(valid.sum()), "masked": int((~valid).sum()), "beta_ln": beta_ln}


def _held_out(job: Job[OofSettings], rows: int) -> Tensor:
    """(n, 2) every comparison's log-probabilities, from the pilot of its fold."""
    logps = torch.full((rows, 2), torch.nan)
    for name, stage in job.stage.inputs.items():
        if stage.kind is PILOT_STAGE:
            part = job.load(HELD_OUT, name)
            logps[part.rows] = part.logps
    return logps


def _cost(estimates: Estimates, stage: Stage[PilotSettings]) -> Cost:
    s = stage.settings
    trained = estimates.training(s.model, s.training, s.objective, share=1 - 1 / s.folds)
    scored = estimates.scoring(s.model, share=1 / s.folds)
    return replace(trained, tokens=trained.tokens + scored.tokens, flops=trained.flops + scored.flops)


PILOT_STAGE = Kind("pilot", train_pilot, uses_model=True, ranked="by default", cost=_cost)
OOF_STAGE = Kind("oof", gather_evidence)
