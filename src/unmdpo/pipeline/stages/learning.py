"""Training inside a stage: turns settings into a trained model, resuming from checkpoints."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from unmdpo.engine.adapters import add_lora, merge
from unmdpo.engine.cost import checkpoint_activations, forward_flops, needs_checkpointing, training_passes
from unmdpo.engine.models import compute_dtype, load_model
from unmdpo.engine.pairs.encode import EncodedPairs
from unmdpo.engine.pairs.scorer import PairScorer, compile_layers
from unmdpo.engine.ranks import Ranks, local_device, shard
from unmdpo.engine.settings import ComputeSettings, ModelSource, ObjectiveChoice, TrainingSettings
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.loop import train
from unmdpo.engine.training.metrics import Progress
from unmdpo.engine.training.trainer import Trainer
from unmdpo.errors import UserError
from unmdpo.objectives import beta_ln_from_lengths
from unmdpo.pipeline.proofs import prove_in
from unmdpo.pipeline.stage import Job, Notes
from unmdpo.scale import ScaleBesidePolicy


@dataclass(frozen=True)
class Trained:
    trainer: Trainer
    model: PreTrainedModel  # adapters merged
    scorer: PairScorer  # for that model
    notes: Notes
    checkpoints: Path

    def done(self) -> None:
        """Removes the checkpoints, once all results of the training have been written."""
        if self.trainer.ranks.first:
            # renamed first, so half-removed checkpoints are never found under their usual name
            spent = self.checkpoints.with_name(".checkpoints.spent")
            shutil.rmtree(spent, ignore_errors=True)  # left by an attempt that ended here
            self.checkpoints.rename(spent)
            shutil.rmtree(spent)


def train_in(
    job: Job[Any],
    model: ModelSource,
    settings: TrainingSettings,
    objective: ObjectiveChoice,
    data: TrainingData,
    scale: ScaleBesidePolicy | None = None,
) -> Trained:
    """Trains from the last checkpoint in the job's folder, if there is one."""
    loaded, adapted = load_to_train(model), None
    if settings.adapter is not None:
        adapted = add_lora(loaded, settings.adapter, seed=settings.random_seed)
    scorer = PairScorer(loaded)
    proof = prove_in(job, scorer)
    _spare_memory(scorer, job.compute)
    passes = training_passes(loaded, adaptive=objective.objective.adaptive)
    flops = passes * forward_flops(loaded, data.pairs.valid_lengths)
    trainer = Trainer(ready(scorer), data, objective, settings, job.compute, scale)
    train(trainer, job.folder, sinks=[Progress(trainer.updates, job.report)])
    share = trainer.num_tokens / max(1, data.pairs.valid_tokens)
    notes, checkpoints = (
        {"tokens": trainer.num_tokens, "flops": flops * share, "proof": proof},
        job.folder / "checkpoints",
    )
    if adapted is None:
        return Trained(trainer, loaded, scorer, notes, checkpoints)
    merged = merge(adapted)
    return Trained(trainer, merged, PairScorer(merged), notes, checkpoints)


def load_to_train(source: ModelSource) -> PreTrainedModel:
    """Loads a model for training; in float32 if it will be sharded, since the shards are then the masters."""
    device = local_device()
    dtype = torch.float32 if Ranks.current().world > 1 else compute_dtype(device)
    return load_model(source, device=device, dtype=dtype)


def ready(scorer: PairScorer) -> PairScorer:
    """Compiles the scorer on a GPU, and shards it over several ranks."""
    if scorer.device.type == "cuda":
        compile_layers(scorer)
    if Ranks.current().world > 1:
        shard(scorer, compute=compute_dtype(scorer.device))
    return scorer


def _spare_memory(scorer: PairScorer, compute: ComputeSettings) -> None:
    wanted, budget = compute.activation_checkpointing, compute.token_budget or scorer.default_budget
    if wanted is None:
        wanted = needs_checkpointing(scorer.model, budget, offload_optimizer=compute.offload_optimizer)
    if wanted:
        checkpoint_activations(scorer.model)


def with_beta(choice: ObjectiveChoice, beta: float, pairs: EncodedPairs) -> ObjectiveChoice:
    """Sets an objective's β, if it is not given, to the recipe's β₀; or, if its log-ratios are per token, to β_LN
    computed from β₀ and the lengths of `pairs` ("Length-normalized configurations")."""
    objective = choice.objective
    if objective.own_beta or "beta" in choice.settings:
        return choice
    if objective.normalized:
        tokens = torch.from_numpy(pairs.valid_lengths[:, 1:])
        beta = beta_ln_from_lengths(tokens[:, 0], tokens[:, 1], beta)
    return choice.with_settings({"beta": beta})


def check_finite_logps(logps: Tensor, pairs: EncodedPairs, whose: str) -> None:
    """Raises if valid comparisons have NaN or infinite log-probabilities, naming them by index from 0."""
    valid = torch.from_numpy(pairs.valid)
    bad = (valid & ~logps.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if bad:
        raise UserError(
            f"log-probabilities of {len(bad)} comparisons under {whose} are not finite, for example of "
            f"numbers {bad[:8]}; check the model's weights, or lower the learning rate"
        )
