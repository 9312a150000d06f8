"""Training inside a stage: turns settings into a trained model, resuming from checkpoints.

First comes a proof that the model is scored right. Proofs are kept in the store, one for each model, data, device and
code version.
"""

import contextlib
import hashlib
import json
import warnings
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.core.files import SEAL, read_sealed, with_seal, write_json
from unmdpo.core.settings import SEED
from unmdpo.engine.adapters import add_lora
from unmdpo.engine.cost import forward_flops, spare_memory, training_passes
from unmdpo.engine.models import compute_dtype, load_in_four_bits, load_model
from unmdpo.engine.pairs.proof import Proof, prove
from unmdpo.engine.pairs.scorer import PairScorer, compile_layers
from unmdpo.engine.ranks import Ranks, device_name, local_device
from unmdpo.engine.settings import AdapterSettings, ModelSource, ObjectiveChoice, TrainingSettings
from unmdpo.engine.sharding import empty_model, fill, shard
from unmdpo.engine.text.encoded import EncodedPairs
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.loop import LoopSettings, Validation, train
from unmdpo.engine.training.metrics import Progress, sinks_of
from unmdpo.engine.training.trainer import Trainer
from unmdpo.objectives import beta_ln_from_lengths
from unmdpo.scale import PolicyTimeScale
from unmdpo.stages.shared.base import Job, Notes
from unmdpo.stages.shared.files import PAIRS
from unmdpo.store.keys import identity_of
from unmdpo.store.store import versions

if TYPE_CHECKING:
    from unmdpo.engine.adapters import PeftModel

WORTH_MINUTES = 1.0  # what took less is sooner trained again than written, which for a 1B model is 15 GB


@dataclass(frozen=True)
class TrainedModel:
    trainer: Trainer
    adapted: "PeftModel | None"  # the model with its adapter, if it has one
    notes: Notes

    @property
    def scorer(self) -> PairScorer:
        """With the adapter in place: merging would round it away."""
        return self.trainer.scorer


def train_in(
    job: Job,
    model: ModelSource,
    settings: TrainingSettings,
    objective: ObjectiveChoice,
    data: TrainingData,
    scale: PolicyTimeScale | None = None,
    *,
    validation: Validation | None = None,
) -> TrainedModel:
    """Trains from the last checkpoint in the job's folder, if there is one."""
    scorer, adapted = open_scorer(model, settings.adapter, seed=settings.random_seed)
    if adapted is None and getattr(scorer.model, "hf_quantizer", None) is not None:
        raise UserError(f"'{model.path}' is quantized: train an adapter beside it, or its unquantized weights")
    proof = prove_in(job, model, scorer)
    spare_memory(scorer, job.compute, data.pairs)
    passes = training_passes(scorer.model, adaptive=objective.objective.adaptive)
    flops = passes * forward_flops(scorer.model, data.pairs.valid_lengths)
    trainer = Trainer(compiled(scorer), data, objective, settings, job.compute, scale)
    loop = LoopSettings(
        worth_minutes=WORTH_MINUTES, validate_updates=settings.validate_updates, patience=settings.patience
    )
    shown, saved = Progress(trainer.updates, job.report), job.state / "checkpoints"
    kept = sinks_of(job.logging, job.stage.name) if trainer.ranks.first else []
    train(trainer, job.folder, loop, saved=saved, validation=validation, sinks=[shown, *kept])
    share = trainer.num_tokens / max(1, data.pairs.valid_tokens)
    notes = {"tokens": trainer.num_tokens, "flops": flops * share, "proof": proof}
    if trainer.update < trainer.updates:
        notes |= {"updates": trainer.update}
        warnings.warn(
            f"{job.stage.name}: training ended after {trainer.update} of {trainer.updates} updates, since the loss on "
            f"the validation data did not become smaller for {settings.patience} validations",
            UnmdpoWarning,
            stacklevel=2,
        )
    return TrainedModel(trainer, adapted, notes)


def open_scorer(
    source: ModelSource, adapter: AdapterSettings | None = None, seed: int = SEED, *, four_bit: bool = False
) -> tuple[PairScorer, "PeftModel | None"]:
    """Loads a model to score or train, with a new adapter or in four bits if wanted. Several ranks share it, each
    loading its part."""
    device = local_device()
    if Ranks.current().world > 1:
        return _open_shared(source, adapter, seed, device)
    four_bit = four_bit or (adapter is not None and adapter.four_bit)
    model = load_in_four_bits(source, device=device) if four_bit else load_model(source, device=device)
    adapted = None if adapter is None else add_lora(model, adapter, seed, source.base)
    return PairScorer(model), adapted


def _open_shared(
    source: ModelSource, adapter: AdapterSettings | None, seed: int, device: torch.device
) -> tuple[PairScorer, "PeftModel | None"]:
    """What is trained is float32, since the shards are the masters; what is frozen is as it computes."""
    compute, adapted = compute_dtype(device), None
    model = empty_model(source, torch.float32 if adapter is None else compute)
    if adapter is not None:
        adapted = add_lora(model, adapter, seed, source.base)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
    scorer = PairScorer(model, device)
    shard(scorer, compute=compute)
    fill(scorer, model, source, device)
    return scorer, adapted


def compiled(scorer: PairScorer) -> PairScorer:
    """Compiles the scorer on a GPU, once its layout is known."""
    if scorer.device.type == "cuda":
        compile_layers(scorer)
    return scorer


def with_beta(choice: ObjectiveChoice, beta: float, pairs: EncodedPairs) -> ObjectiveChoice:
    """Sets an objective's β, if it is not given, to the recipe's β₀; or, if its log-ratios are per token, to β_LN
    computed from β₀ and the lengths of `pairs` ("Length-normalized configurations")."""
    objective = choice.objective
    if objective.own_beta or "beta" in choice.settings:
        return choice
    if objective.normalized:
        tokens = torch.from_numpy(pairs.scored[pairs.valid])
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


def prove_in(job: Job, model: ModelSource, scorer: PairScorer) -> Notes:
    """Finds the scorer's layout on the job's pairs, or looks up what was found before, and returns what the manifest
    should say about it."""
    pairs = job.load(PAIRS, "encoded")
    place = None if job.proofs is None else job.proofs / f"{_key(job, model, scorer, pairs)}.json"
    ranks = Ranks.current()
    known = ranks.share(_read(place) if place is not None and ranks.first else None)
    if known is not None:
        scorer.use(known.layout)
        scorer.proven = True
    else:
        known = prove(scorer, pairs, job.compute.token_budget)
        if place is not None and ranks.first:
            write_json(place, with_seal(asdict(known)))
    return known.notes


def _key(job: Job, model: ModelSource, scorer: PairScorer, pairs: EncodedPairs) -> str:
    described = {
        "model": identity_of(model),
        "class": type(scorer.model).__name__,
        "dtype": str(scorer.model.dtype),
        "quantized": getattr(scorer.model, "hf_quantizer", None) is not None,
        "trained": sum(p.requires_grad for p in scorer.model.parameters()),  # with an adapter, another number
        "pairs": pairs.digest,
        "device": device_name().partition(",")[0],
        "ranks": Ranks.current().world,
        "versions": versions() | _kernel_versions(),
        "layouts": scorer.layouts,
        "token_budget": job.compute.token_budget,
    }
    text = json.dumps(described, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _kernel_versions() -> dict[str, str]:
    """Of what is not always there, and computes where it is."""
    found = {}
    for name in ("flash-attn-4", "nvidia-cutlass-dsl", "triton"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _read(place: Path) -> Proof | None:
    """A proof that is not exactly what was written is made again."""
    try:
        content = read_sealed(place) or {}
        return Proof(**{name: value for name, value in content.items() if name != SEAL})
    except (OSError, TypeError):
        return None
