"""Pilots on prompt-grouped folds, and the values each comparison gets from the one that never saw it."""

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from unmdpo.catalog import CATALOG
from unmdpo.engine.encode import EncodedPairs
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.rows import TrainingData
from unmdpo.engine.score import score
from unmdpo.engine.train import ObjectiveChoice
from unmdpo.errors import UserError
from unmdpo.objectives import PairLogps, beta_ln_from_lengths
from unmdpo.pipeline.common import PromptIndex, check_finite_logps, strengths
from unmdpo.pipeline.stage import Job, Notes
from unmdpo.pipeline.stages.data import TRAIN
from unmdpo.pipeline.tables import read_comparisons
from unmdpo.pipeline.training import train_in


def pilot(job: Job) -> Notes:
    """Trains on all other folds, then scores its own: weights are not kept."""
    rows = read_comparisons(job.inputs["comparisons"].file(TRAIN))
    pairs = EncodedPairs.load(job.inputs["encoded"].file("pairs.safetensors"))
    index = PromptIndex.of(rows)
    held_out = (index.folds(job.settings["folds"], job.settings["fold_seed"]) == job.settings["fold"])[
        index.of_row
    ]
    if not held_out.any() or held_out.all():
        raise UserError(
            f"{job.stage.name}: {int(held_out.sum())} of {len(rows)} comparisons are held out; "
            "there are too few prompts for this many folds"
        )
    inside = (~held_out).nonzero().flatten()
    reference = None
    if CATALOG[job.settings["objective"]].reference:
        reference = load_file(job.inputs["reference"].file("reference.safetensors"))["logps"][inside]
    data = TrainingData(_select(pairs, inside), strengths(rows)[inside], reference)
    choice = ObjectiveChoice(job.settings["objective"], job.settings["objective_settings"])
    trained = train_in(job, data, choice)
    outside = held_out.nonzero().flatten()
    logps = score(trained.scorer, _select(pairs, outside), job.compute.token_budget)
    if Ranks.current().first:
        save_file({"rows": outside, "logps": logps}, job.folder / "held-out.safetensors")
    trained.done()
    return trained.notes | {"held_out": len(outside)}


def _select(pairs: EncodedPairs, members: torch.Tensor) -> EncodedPairs:
    return EncodedPairs.of(pairs.select(members.tolist()))


def out_of_fold(job: Job) -> Notes:
    """Every comparison scored once: sequence-level and length-normalized gaps, masked rows kept and
    flagged ("OOF scoring mask")."""
    pairs = EncodedPairs.load(job.inputs["encoded"].file("pairs.safetensors"))
    reference = load_file(job.inputs["reference"].file("reference.safetensors"))["logps"]
    logps = torch.full((len(pairs), 2), torch.nan)
    for name, artifact in job.inputs.items():
        if name.startswith("pilot"):
            part = load_file(artifact.file("held-out.safetensors"))
            logps[part["rows"]] = part["logps"]
    valid = torch.from_numpy(pairs.valid.astype(np.bool_))
    tokens = torch.from_numpy(pairs.lengths[:, 1:].astype(np.int64))
    check_finite_logps(logps, valid, "the pilots")
    gaps = PairLogps(
        chosen=logps[:, 0], rejected=logps[:, 1], chosen_tokens=tokens[:, 0], rejected_tokens=tokens[:, 1],
        strength=torch.ones(len(pairs)), ref_chosen=reference[:, 0], ref_rejected=reference[:, 1],
    )  # fmt: skip
    beta_ln = beta_ln_from_lengths(tokens[valid, 0], tokens[valid, 1], job.settings["beta"])
    save_file(
        {
            "evidence": job.settings["beta"] * gaps.log_ratio,
            "evidence_ln": beta_ln * gaps.mean_log_ratio,
            "valid": valid,
            "mean_tokens": tokens.float().mean(dim=1),
            "beta_ln": torch.tensor(beta_ln, dtype=torch.float64),
        },
        job.folder / "oof.safetensors",
    )
    return {"valid": int(valid.sum()), "masked": int((~valid).sum()), "beta_ln": beta_ln}
