"""Training inside a stage: settings of a recipe in, a trained model out, resuming what is there."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from unmdpo.engine.adapters import LoraSettings, add_lora, merge
from unmdpo.engine.flops import forward_flops, training_passes
from unmdpo.engine.loop import LoopSettings, train
from unmdpo.engine.memory import checkpoint_activations, needs_checkpointing
from unmdpo.engine.models import load_model
from unmdpo.engine.ranks import local_device
from unmdpo.engine.rows import TrainingData
from unmdpo.engine.schedule import updates_per_epoch
from unmdpo.engine.scoring import PairScorer, compile_layers
from unmdpo.engine.sinks import Progress
from unmdpo.engine.train import ObjectiveChoice, Trainer, TrainingSettings
from unmdpo.pipeline.common import model_source
from unmdpo.pipeline.stage import Job, Notes
from unmdpo.scale import ScaleBesidePolicy


def compute_dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


@dataclass(frozen=True)
class Trained:
    trainer: Trainer
    model: PreTrainedModel  # adapters merged
    notes: Notes


def train_in(
    job: Job, data: TrainingData, objective: ObjectiveChoice, scale: ScaleBesidePolicy | None = None
) -> Trained:
    """Trains as the stage's settings say, from the last checkpoint in its folder if there is one."""
    given = job.settings["training"]
    device = local_device()
    model = load_model(model_source(job.settings["model"]), device=device, dtype=compute_dtype(device))
    adapted = None
    if given["adapter"] is not None:
        adapted = add_lora(model, LoraSettings(**given["adapter"]), seed=given["seed"])
    settings = _settings(given, len(data), job)
    scorer = PairScorer(model)
    _spare_memory(job, scorer, settings)
    if device.type == "cuda":
        compile_layers(model)
    trainer = Trainer(scorer, data, objective, settings, scale)
    progress = Progress(settings.updates, job.report)
    train(
        trainer, job.folder, LoopSettings(checkpoint_minutes=job.compute.checkpoint_minutes), sinks=[progress]
    )
    shutil.rmtree(job.folder / "checkpoints")
    passes = training_passes(model, adaptive=trainer.rule.spec.batch)
    lengths = data.pairs.lengths[data.pairs.valid]
    share = trainer.num_tokens / max(1, int(lengths.sum()))
    notes = {"tokens": trainer.num_tokens, "flops": passes * forward_flops(model, lengths) * share}
    return Trained(trainer, model if adapted is None else merge(adapted), notes)


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
