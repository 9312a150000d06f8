"""Training inside a stage: settings of a recipe in, a trained model out, resuming what is there."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from unmdpo.catalog import CATALOG
from unmdpo.engine.adapters import LoraSettings, add_lora, merge
from unmdpo.engine.flops import forward_flops, training_passes
from unmdpo.engine.loop import LoopSettings, train
from unmdpo.engine.memory import checkpoint_activations, needs_checkpointing
from unmdpo.engine.models import load_model
from unmdpo.engine.ranks import Ranks, local_device
from unmdpo.engine.rows import TrainingData
from unmdpo.engine.schedule import updates_per_epoch
from unmdpo.engine.scoring import PairScorer, compile_layers
from unmdpo.engine.shard import shard
from unmdpo.engine.sinks import Progress
from unmdpo.engine.train import ObjectiveChoice, Trainer, TrainingSettings
from unmdpo.errors import UserError
from unmdpo.pipeline.common import model_source
from unmdpo.pipeline.stage import Job, Notes
from unmdpo.scale import ScaleBesidePolicy


def compute_dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


@dataclass(frozen=True)
class Trained:
    trainer: Trainer
    model: PreTrainedModel  # adapters merged
    scorer: PairScorer  # of that model
    notes: Notes
    checkpoints: Path

    def done(self) -> None:
        """Drops the checkpoints, once everything that came of the training has been written."""
        if self.trainer.ranks.first:
            spent = self.checkpoints.with_name(".checkpoints.spent")  # never half of them under their name
            shutil.rmtree(spent, ignore_errors=True)  # of a try that ended here
            self.checkpoints.rename(spent)
            shutil.rmtree(spent)


def train_in(
    job: Job, data: TrainingData, objective: ObjectiveChoice, scale: ScaleBesidePolicy | None = None
) -> Trained:
    """Trains as the stage's settings say, from the last checkpoint in its folder if there is one."""
    given, ranks = job.settings["training"], Ranks.current()
    model = load_for_training(job)
    adapted = None
    if given["adapter"] is not None:
        if ranks.world > 1:
            raise UserError("an adapter is trained on one GPU: leave compute.ranks at 1, or the adapter out")
        adapted = add_lora(model, LoraSettings(**given["adapter"]), seed=given["seed"])
    settings = _settings(given, len(data), job)
    scorer = PairScorer(model)
    _spare_memory(job, scorer, settings)
    passes = training_passes(model, adaptive=CATALOG[objective.name].batch)
    flops = passes * forward_flops(model, data.pairs.lengths[data.pairs.valid])
    ready(scorer)
    trainer = Trainer(scorer, data, objective, settings, scale)
    loop = LoopSettings(checkpoint_minutes=job.compute.checkpoint_minutes)
    train(trainer, job.folder, loop, sinks=[Progress(settings.updates, job.report)])
    share = trainer.num_tokens / max(1, int(data.pairs.lengths[data.pairs.valid].sum()))
    notes = {"tokens": trainer.num_tokens, "flops": flops * share}
    if adapted is None:
        return Trained(trainer, model, scorer, notes, job.folder / "checkpoints")
    merged = merge(adapted)
    return Trained(trainer, merged, PairScorer(merged), notes, job.folder / "checkpoints")


def load_for_training(job: Job) -> PreTrainedModel:
    """Float32 where the model will be sharded: the shards are the masters then."""
    device = local_device()
    dtype = torch.float32 if Ranks.current().world > 1 else compute_dtype(device)
    return load_model(model_source(job.settings["model"], job.inputs), device=device, dtype=dtype)


def ready(scorer: PairScorer) -> PairScorer:
    """Compiled on a GPU, and sharded where there are several ranks."""
    if scorer.device.type == "cuda":
        compile_layers(scorer.model)
    if Ranks.current().world > 1:
        shard(scorer, compute=compute_dtype(scorer.device))
    return scorer


def _settings(given: Mapping[str, Any], slots: int, job: Job) -> TrainingSettings:
    updates = given["updates"]
    if updates is None:
        updates = given["epochs"] * updates_per_epoch(slots, given["batch"])
    return TrainingSettings(
        updates=updates,
        batch=given["batch"],
        learning_rate=given["learning_rate"],
        warmup=given["warmup"],
        schedule=given["schedule"],
        weight_decay=given["weight_decay"],
        betas=tuple(given["betas"]),
        eps=given["eps"],
        clip=given["clip"],
        seed=given["seed"],
        token_budget=job.compute.token_budget,
        offload_optimizer=job.compute.offload_optimizer,
    )


def _spare_memory(job: Job, scorer: PairScorer, settings: TrainingSettings) -> None:
    wanted = job.compute.activation_checkpointing
    budget = settings.token_budget or scorer.default_budget
    if wanted is None:
        wanted = needs_checkpointing(scorer.model, budget, offload_optimizer=settings.offload_optimizer)
    if wanted:
        checkpoint_activations(scorer.model)
