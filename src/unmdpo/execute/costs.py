"""What training will take: tokens, FLOPs, memory, disk and time.

Times follow from the useful FLOP/s that `benchmarks.engine` measured on one H200. An A100 is assumed to reach the same
share of its peak.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from unmdpo.engine.adapters import adapted_layers
from unmdpo.engine.cost import USABLE, available, estimate, forward_flops, largest_pair, reached_share, roomy_tokens
from unmdpo.engine.meta import MetaModel, adapter_size, meta_model, parameters
from unmdpo.engine.models import decoder_layers
from unmdpo.engine.ranks import local_device
from unmdpo.engine.settings import AdapterSettings, ComputeSettings, ModelSource, TrainingSettings
from unmdpo.engine.text.encoded import longest
from unmdpo.stages.judge import JUDGE_STAGE
from unmdpo.stages.pilot import PILOT_STAGE
from unmdpo.stages.policy import POLICY_STAGE
from unmdpo.stages.shared.base import Stage

H200_USEFUL = 446e12  # FLOP/s when training the 1B model, docs/evidence/performance.md
MEASURED_SHARES = {135e6: 0.47, 1.2e9: 1.0, 8e9: 0.8}  # share of that rate by parameters; the nearest size is used
COMPILING_SECONDS = 12.0  # in the first pass over pairs on a GPU; 9 to 19 were seen, and none in a warm process
CHECKPOINTS_KEPT = 2
NO_PAIRS: NDArray[np.int32] = np.ones((1, 3), dtype=np.int32)  # memory and disk hardly depend on the data


@dataclass(frozen=True)
class Cost:
    """What one training takes."""

    tokens: float
    flops: float
    memory: float  # bytes on each device
    disk: float  # bytes of checkpoints and results, at most
    kept: float  # bytes of results alone
    ranks: int  # devices that share the model
    recomputes: bool  # activations, to save memory
    share: float  # of the 1B model's rate, that a model of this size reaches

    def seconds(self, useful_flops: float) -> float:
        """On a device that does so many useful FLOP in a second of training."""
        return COMPILING_SECONDS + self.flops / (useful_flops * self.share)


def training_cost(
    stage: Stage, compute: ComputeSettings, memory: float, lengths: NDArray[np.int32] = NO_PAIRS, ranks: int = 1
) -> Cost | None:
    """What a stage takes that trains, on devices with this much `memory`, `ranks` of which share the model; None of
    other stages. `lengths` (n, 3) are those of the valid training pairs: prompt, chosen, rejected."""
    settings = stage.settings
    if stage.kind is JUDGE_STAGE:
        rank = settings.training.lora
        adapter = None if rank is None else AdapterSettings(rank=rank)
        shape = meta_model(settings.model, judge=True)
        return _cost(shape, adapter, compute, memory, lengths, ranks, passes=0.0, pairs_seen=0.0)  # pairs not counted
    if stage.kind not in (PILOT_STAGE, POLICY_STAGE):
        return None
    share = 1 - 1 / settings.folds if stage.kind is PILOT_STAGE else 1.0  # of the pairs
    training: TrainingSettings = settings.training
    updates = training.updates or (training.epochs or 1) * int(share * len(lengths) // training.batch)
    shape = meta_model(settings.model)
    passes = _passes(shape, training.adapter) + settings.objective.objective.adaptive
    pairs_seen = float(updates * training.batch)
    return _cost(shape, training.adapter, compute, memory, lengths, ranks, passes, pairs_seen)


def _cost(
    shape: MetaModel,
    adapter: AdapterSettings | None,
    compute: ComputeSettings,
    memory: float,
    lengths: NDArray[np.int32],
    ranks: int,
    passes: float,
    pairs_seen: float,
) -> Cost:
    """`passes` are in forward passes for each pair that is seen."""
    needed, recomputes = _memory_to_train(shape, adapter, compute, memory, lengths, ranks)
    trained = parameters(shape) if adapter is None else adapter_size(shape, adapter)
    exported = _exported(shape, trained, adapter)
    epochs = pairs_seen / max(1, len(lengths))
    return Cost(
        tokens=epochs * float(lengths.sum()),
        flops=(passes + recomputes) * epochs * _flops_of_pass(shape, lengths.tobytes()) if pairs_seen else 0.0,
        memory=needed,
        disk=CHECKPOINTS_KEPT * 12.0 * trained + exported,
        kept=exported,
        ranks=ranks,
        recomputes=recomputes,
        share=_size_share(shape),
    )


@lru_cache(maxsize=16)
def _flops_of_pass(shape: MetaModel, lengths: bytes) -> float:
    return forward_flops(shape, np.frombuffer(lengths, dtype=np.int32).reshape(-1, 3))


def _memory_to_train(
    shape: MetaModel,
    adapter: AdapterSettings | None,
    compute: ComputeSettings,
    memory: float,
    lengths: NDArray[np.int32],
    ranks: int,
) -> tuple[float, bool]:
    """And whether activations are recomputed."""
    microbatch = compute.token_budget or _usual_microbatch(shape, memory, ranks)
    tokens = max(microbatch, int(lengths.sum(axis=1).max(initial=0)))
    row = int(longest(lengths).max(initial=0))
    packed = 1.4 * parameters(shape) if adapter is not None and adapter.four_bit else 0.0  # bytes that are saved
    needed = {
        recomputes: _estimated(
            shape, adapter is None, tokens, row, compute.offload_optimizer, ranks, memory, recomputes
        )
        - packed
        for recomputes in (False, True)
    }
    wanted = compute.activation_checkpointing
    recomputes = needed[False] > USABLE * memory if wanted is None else wanted
    return needed[recomputes], recomputes


@lru_cache(maxsize=256)
def _estimated(
    shape: MetaModel,
    trains_all: bool,
    tokens: int,
    row: int,
    offload: bool,
    ranks: int,
    memory: float,
    recomputes: bool,
) -> float:
    total = estimate(
        _for_training(shape, trains_all),
        tokens,
        checkpointing=recomputes,
        row=row,
        offload_optimizer=offload,
        world=ranks,
        memory=memory,
    ).total
    return float(total)


def usual_microbatch(stage: Stage, compute: ComputeSettings, ranks: int) -> int:
    """Tokens in a microbatch of a stage on this process's device."""
    shape = meta_model(stage.settings.model)
    return compute.token_budget or _usual_microbatch(shape, available(local_device()), ranks)


def longest_pair(
    model: ModelSource, adapter: AdapterSettings | None, compute: ComputeSettings, memory: float, ranks: int
) -> int:
    """Tokens of the longest pair that trains."""
    shape = _for_training(meta_model(model), adapter is None)
    return largest_pair(shape, memory, offload_optimizer=compute.offload_optimizer, world=ranks)


def _for_training(shape: MetaModel, trains_all: bool) -> MetaModel:
    for parameter in shape.parameters():
        parameter.requires_grad_(trains_all)
    return shape


@lru_cache(maxsize=64)
def _usual_microbatch(shape: MetaModel, memory: float, ranks: int) -> int:
    """Where all weights are trained; with an adapter there is room for more, which nobody needs."""
    return roomy_tokens(_for_training(shape, True), memory, ranks)


def _passes(model: MetaModel, adapter: AdapterSettings | None) -> float:
    """An update's cost in forward passes. An adapter's own share is small, and gradients end at its first layer."""
    if adapter is None:
        return 3.0
    frozen = len(decoder_layers(model)) - len(adapted_layers(model, adapter))
    return 1.05 + reached_share(model, frozen)


def _exported(model: MetaModel, trained: int, adapter: AdapterSettings | None) -> float:
    """Bytes of a policy on disk: its weights, or a float32 adapter and perhaps merged weights."""
    if adapter is None:
        return 2.0 * trained
    return 4.0 * trained + (2.0 * parameters(model) if adapter.merge else 0.0)


def _size_share(model: MetaModel) -> float:
    size = parameters(model)
    return MEASURED_SHARES[min(MEASURED_SHARES, key=lambda known: abs(np.log(size / known)))]
