"""Training a judge: a reward model, measured on held-out prompts."""

import gc
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from unmdpo.core.errors import OutOfMemory, UserError
from unmdpo.core.files import check_new, remove, replacing, write_text
from unmdpo.data import Comparison
from unmdpo.data.comparison import Comparisons
from unmdpo.data.load import load
from unmdpo.data.panels import split_prompts
from unmdpo.data.reading import RowsSettings
from unmdpo.engine.cost import spare_memory
from unmdpo.engine.inference.reward_model import RewardModel
from unmdpo.engine.models import context_length
from unmdpo.engine.pairs.proof import Proof, prove
from unmdpo.engine.settings import ComputeSettings, ModelSource
from unmdpo.engine.tally import Report
from unmdpo.engine.text.encode import Encoder
from unmdpo.engine.text.encoded import EncodedPairs
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.loop import LoopSettings
from unmdpo.engine.training.loop import train as train_to_the_end
from unmdpo.engine.training.metrics import Progress, Sink
from unmdpo.engine.training.reward import (
    JudgeObjective,
    RewardSettings,
    finished_model,
    open_reward_scorer,
    padding_token,
    reward_pair,
)
from unmdpo.engine.training.trainer import Trainer
from unmdpo.stages.shared.judge_measure import Measured
from unmdpo.stages.shared.training import WORTH_MINUTES, compiled
from unmdpo.stages.shared.units import weights

MEASURED = "judge.json"  # beside the model
CARD = "README.md"


@dataclass(frozen=True)
class TrainedJudge:
    folder: Path
    trained_on: int
    left_out: dict[str, int]  # of the data: bad rows, ties, and pairs that are too long
    held_out: Measured
    proof: Proof

    def to_dict(self) -> dict[str, Any]:
        found = self.held_out.to_dict()
        return {"trained_on": self.trained_on, "left_out": self.left_out, "held_out": found.pop("all"), **found}


@dataclass(frozen=True)
class JudgeData:
    """The pairs that a judge learns from, and those that it is measured on."""

    training: list[Comparison]
    measured: list[Comparison]
    margins: dict[float, float]
    left_out: dict[str, int]


def read_pairs(wanted: RowsSettings, *, held_out: float, seed: int, batch: int) -> JudgeData:
    """Reads them; an error if they are too few, whatever their length."""
    data = load(wanted)
    unseen = split_prompts((row.prompt_hash for row in data), held_out, seed)
    training = [row for row in data if row.prompt_hash not in unseen]
    measured = [row for row in data if row.prompt_hash in unseen]
    if len(training) < batch or not measured:
        raise UserError(
            f"{wanted.path}: {len(training)} pairs to train a judge on and {len(measured)} held out: it needs a batch "
            f"of {batch}, and one to measure it; bring more, lower batch, or change held_out"
        )
    return JudgeData(training, measured, _margins(data), {"bad": len(data.skipped), "ties": len(data.ties)})


def train_judge(
    wanted: RowsSettings,
    source: ModelSource,
    folder: Path,
    settings: RewardSettings,
    *,
    state: Path | None = None,
    held_out: float = 0.1,
    margins: bool = True,
    base: str | None = None,
    compute: ComputeSettings | None = None,
    sinks: Sequence[Sink] = (),
    report: Report = lambda text: None,
) -> TrainedJudge:
    """Trains on all prompts but a share that is held out, writes the judge, measures it on those, and writes that
    beside it. `base` is what its card calls the model, if not by where it lies. What is not finished goes on from
    the folder `state`; by default, from a hidden one beside the judge, for exactly this model, data and settings."""
    folder = folder.resolve()
    _check_place(folder)
    settings = replace(settings, max_length=min(settings.max_length, context_length(source) or settings.max_length))
    data = read_pairs(wanted, held_out=held_out, seed=settings.seed, batch=settings.batch)
    encoder = Encoder.of(source)
    pairs, kept = _encoded(source, encoder, data.training, settings.max_length, data.margins if margins else {})
    _, short = _encoded(source, encoder, data.measured, settings.max_length, {})
    if len(pairs) < settings.batch or not short:
        raise UserError(
            f"{len(pairs)} of {len(data.training)} pairs to train on, and {len(short)} of {len(data.measured)} held "
            f"out, have at most {settings.max_length} tokens: it needs a batch of {settings.batch}, and one to "
            "measure it; raise max_length, or lower batch"
        )
    report(f"{len(pairs):,} pairs to train on, {len(short):,} held out")
    own = folder.with_name(f".{folder.name}.unfinished")
    unfinished = own / _identity(source, settings, pairs) if state is None else state
    model, proof = _trained(source, encoder, pairs, settings, unfinished, compute or ComputeSettings(), sinks, report)
    left_out = data.left_out | {"too long": len(data.training) - len(kept) + len(data.measured) - len(short)}
    with replacing(folder) as aside:
        model.save_pretrained(aside)
        encoder.tokenizer.save_pretrained(aside)
        del model
        gc.collect()  # compiled layers refer to themselves
        found = _measured(RewardModel(source.at_path(str(aside))), [data.measured[i] for i in short])
        judge = TrainedJudge(folder, len(pairs), left_out, found, proof)
        write_text(aside / MEASURED, json.dumps(judge.to_dict(), indent=2) + "\n")
        write_text(aside / CARD, _card(judge, _named(str(wanted.path)), _named(base or source.path), settings))
    remove(own)
    return judge


def _identity(source: ModelSource, settings: RewardSettings, data: TrainingData) -> str:
    """A digest of all that a judge depends on; files of a model by name, size and time."""
    place = Path(source.path)
    found = [(path.name, path.stat()) for path in sorted(place.iterdir())] if place.is_dir() else []
    files = [(name, status.st_size, status.st_mtime_ns) for name, status in found]
    numbers = [data.strength.tolist(), None if data.weight is None else data.weight.tolist()]
    described = [source.model_dump(mode="json"), files, asdict(settings), data.pairs.digest, numbers]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]


def _trained(
    source: ModelSource,
    encoder: Encoder,
    data: TrainingData,
    settings: RewardSettings,
    state: Path,
    compute: ComputeSettings,
    sinks: Sequence[Sink],
    report: Report,
) -> tuple[PreTrainedModel, Proof]:
    try:
        scorer, adapted = open_reward_scorer(source, encoder.tokenizer, settings)
        proof = prove(scorer, data.pairs, compute.token_budget)
        spare_memory(scorer, compute, data.pairs)
        trainer = Trainer(compiled(scorer), data, JudgeObjective(), settings.training(len(data)), compute)
        shown = Progress(trainer.updates, report)
        train_to_the_end(trainer, state, LoopSettings(worth_minutes=WORTH_MINUTES), sinks=[shown, *sinks])
        return finished_model(scorer, adapted, trainer.masters.named), proof
    except torch.OutOfMemoryError as error:
        raise OutOfMemory("the judge does not fit: try lora 16, a smaller max_length, or a smaller model") from error


def _check_place(folder: Path) -> None:
    """Before the work, not after it."""
    check_new(folder)
    if not folder.parent.is_dir() or not os.access(folder.parent, os.W_OK):
        raise UserError(f"{folder}: the folder {folder.parent} does not exist, or cannot be written to")


def _margins(data: Comparisons) -> dict[float, float]:
    """k/K for strengths up to K; nothing where all are equal, since they say nothing then."""
    strengths = {row.strength for row in data}
    return {k: k / max(strengths) for k in strengths} if len(strengths) > 1 else {}


def _encoded(
    source: ModelSource, encoder: Encoder, rows: Sequence[Comparison], max_length: int, margins: dict[float, float]
) -> tuple[TrainingData, list[int]]:
    """The pairs that are short enough, and which they are."""
    written = [i for i, row in enumerate(rows) if encoder.can_write(row)]
    chosen, rejected = (
        encoder.tokenize([encoder.answered_text(rows[i].prompt, rows[i].responses[side]) for i in written])
        for side in (0, 1)
    )
    both = {i: pair for i, *pair in zip(written, chosen, rejected, strict=True) if max(map(len, pair)) <= max_length}
    short, pad = [*both], padding_token(encoder.tokenizer, source)
    pairs = EncodedPairs.of(reward_pair(one, other, pad) for one, other in both.values())
    wanted = torch.tensor([margins.get(rows[i].strength, 0.0) for i in short])
    weight = weights([rows[i] for i in short], torch.ones(len(short), dtype=torch.bool))
    return TrainingData(pairs, wanted, reference=torch.zeros(len(pairs), 2), weight=weight), short


def _measured(judge: RewardModel, rows: Sequence[Comparison]) -> Measured:
    prompts = [row.prompt for row in rows]
    better, worse = (np.array(judge(prompts, [row.responses[side] for row in rows])) for side in (0, 1))
    return Measured.of(better - worse, rows)


def _named(place: str) -> str:
    """A name on the Hub, or that of a file or folder, wherever it lies on this machine."""
    return Path(place).resolve().name if Path(place).exists() else place


def _card(judge: TrainedJudge, data: str, base: str, settings: RewardSettings) -> str:
    lines = [
        "---", "library_name: transformers", "pipeline_tag: text-classification",
        f"base_model: {json.dumps(base, ensure_ascii=False)}", "---",
        "# A judge", "",
        f"A reward model trained with unmdpo on {judge.trained_on:,} pairs of {data}, from {base}.", "",
        "On held-out prompts, the share of pairs that it orders as their labels do:", "",
        "| | pairs | judge | longer is better |", "|---|---|---|---|",
    ]  # fmt: skip
    for name, found in judge.held_out.table.items():
        lines.append(f"| {name} | {found.pairs:,} | {100 * found.judge:.1f} % | {100 * found.length:.1f} % |")
    lines += [
        "",
        f"Expected calibration error: {judge.held_out.calibration.error:.3f}. Settings: {asdict(settings)}.",
        "",
    ]
    return "\n".join(lines)
