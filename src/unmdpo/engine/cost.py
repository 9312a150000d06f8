"""Estimates the FLOPs and memory that training needs.

Weights, masters, gradients and moments are counted exactly. Activations are estimated from what a decoder layer keeps
for its backward pass. `benchmarks/engine.py` prints the estimate next to the measured peak.
"""

import bisect
import itertools
import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

from unmdpo.core.errors import UserError
from unmdpo.engine.models import body, decoder_layers
from unmdpo.engine.pairs.logprobs import CHUNK, KEPT_SHARE
from unmdpo.engine.pairs.scorer import GPU_BUDGET, PairScorer, can_compile
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.settings import ComputeSettings
from unmdpo.engine.text.encoded import EncodedPairs, longest


def forward_flops(model: PreTrainedModel, lengths: NDArray[np.int32]) -> float:
    """FLOPs of one pass over pairs of lengths (n, 3): each prompt counted once, the head only on response tokens,
    attention only over visible tokens. Padding and recomputation do not count as useful work."""
    shape = LayerShape.of(model)
    linear = sum(m.weight.numel() for m in body(model).modules() if isinstance(m, nn.Linear))
    prompt, chosen, rejected = lengths.astype(np.float64).T
    seen = prompt**2 / 2 + chosen * (prompt + chosen / 2) + rejected * (prompt + rejected / 2)
    tokens, responses = prompt + chosen + rejected, chosen + rejected
    attention = shape.layers * 4 * shape.queries * seen
    return float((2 * linear * tokens + attention + 2 * shape.width * _words(model) * responses).sum())


def _words(model: PreTrainedModel) -> int:
    """How many a model has logits for; none if it is a judge."""
    judges = "SequenceClassification" in type(model).__name__
    return 0 if judges else int(model.config.get_text_config().vocab_size)


def training_passes(model: PreTrainedModel, adaptive: bool = False) -> float:
    """The cost of an update in forward passes: the forward pass, the gradients of activations, back to the first
    trained weight, and of trained weights, and the extra first pass that adaptive objectives need."""
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = itertools.takewhile(
        lambda layer: not any(p.requires_grad for p in layer.parameters()), decoder_layers(model)
    )
    return 1 + reached_share(model, len([*frozen])) + trained / total + adaptive


def reached_share(model: PreTrainedModel, frozen: int) -> float:
    """The share of the weights that gradients go back through, if so many of the first layers are frozen."""
    below = sum(p.numel() for layer in decoder_layers(model)[:frozen] for p in layer.parameters())
    return 1 - below / sum(p.numel() for p in model.parameters())


# What a recomputed layer adds, by the peaks of pairs of up to 720,000 tokens (docs/guide/gpus-and-clusters.md).
GRADIENTS, ADAPTED = 1.25, 2.0  # times its inner width; times the inputs of its adapters
EAGER = 1.7  # times as much as a compiled layer keeps: 61.2 and 38.7 GiB in all for SmolLM2-135M
ROOMY = 0.42  # share of a device's memory that a larger microbatch may take
LARGEST_BUDGET, STEP = 65_536, 8_192  # tokens per microbatch
LARGEST_PAIR = 1 << 22  # tokens
SURE = 0.85  # share of the memory up to which a long pair was seen to train: what is freed lies in pieces
USABLE = 0.9  # share of a device's memory that we plan to use
WRITTEN_TOKENS, WRITING_SHARE = 262_144, 1 / 6  # most in a batch of answers, and of the memory for their keys
BFLOAT16, FLOAT32, GIB = 2, 4, 2**30  # bytes


@dataclass(frozen=True)
class Memory:
    """Bytes on the device, by purpose."""

    weights: int
    state: int  # masters, gradients, moments
    activations: int
    head: int  # logits and their gradient, and the head's gradient

    @property
    def total(self) -> int:
        return self.weights + self.state + self.activations + self.head


def estimate(
    model: PreTrainedModel,
    tokens: int,
    *,
    checkpointing: bool,
    row: int = 0,
    offload_optimizer: bool = False,
    world: int = 1,
    memory: float | None = None,
    compiles: bool | None = None,
) -> Memory:
    """One rank's share in training on microbatches of so many tokens, on a device with this much memory, or the
    model's. `row` is the longest sequence. Sharded weights are float32 if trained, and a layer is gathered when
    needed. Layers that are not compiled keep more, and so does attention without a kernel."""
    compute = BFLOAT16 if world > 1 else torch.finfo(model.dtype).bits // 8
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    masters = 0 if compute == FLOAT32 else FLOAT32
    moments = 0 if offload_optimizer else 2 * FLOAT32
    shape = LayerShape.of(model)
    compiled = can_compile(model) if compiles is None else compiles
    in_layer = shape.kept * (1.0 if compiled else EAGER)
    if not (model._supports_sdpa or model._supports_flex_attn):
        in_layer += shape.heads * row * (1 if compute == FLOAT32 else 1 + FLOAT32 / compute) / (2 if compiled else 1)
    kept = shape.checkpointed if checkpointing else in_layer
    working = 0.0
    if checkpointing:  # the layer being recomputed
        adapted = shape.inner + 3 * shape.width if trained < total else 0
        working = in_layer + GRADIENTS * shape.inner + ADAPTED * adapted
    words = _words(model)
    kept_logits = tokens * words * compute
    if kept_logits > KEPT_SHARE * (available(model.device) if memory is None else memory):
        kept_logits = min(CHUNK, tokens) * words * compute
    weights = compute * total if world == 1 else compute * (total - trained) // world + _gathered(model, compute)
    return Memory(
        weights=weights,
        state=(masters + FLOAT32 + moments) * trained // world,
        activations=round(tokens * compute * (shape.layers * kept + working)),
        head=kept_logits + (shape.width * words * (FLOAT32 + compute) if trained == total else 0),
    )


def _gathered(model: PreTrainedModel, compute: int) -> int:
    """Bytes of what a rank has whole at one time: what is outside the layers, the layer in use, and the next one."""
    layers = [sum(p.numel() for p in layer.parameters()) for layer in decoder_layers(model)]
    outside = sum(p.numel() for p in model.parameters()) - sum(layers)
    return compute * (outside + 2 * max(layers, default=0))


def reading_memory(model: PreTrainedModel, world: int = 1) -> int:
    """Bytes of one rank's share of a model that is only read from, without activations."""
    total = BFLOAT16 * sum(p.numel() for p in model.parameters())
    return total if world == 1 else total // world + _gathered(model, BFLOAT16)


def writing_tokens(model: PreTrainedModel, memory: float, cached: int, world: int = 1) -> int:
    """Tokens in a batch of answers on a device with this much memory. A GPU writes a token for hundreds of answers as
    fast as for one, as long as their keys and values fit, `cached` bytes for each token."""
    room = min(WRITING_SHARE * memory, (USABLE * memory - reading_memory(model, world)) / 2)
    return 1 << int(math.log2(min(max(room / cached, 1024), WRITTEN_TOKENS)))


@dataclass(frozen=True)
class LayerShape:
    """A decoder's widths, read from any Transformers configuration."""

    layers: int
    width: int
    inner: int
    heads: int
    queries: int
    keys: int
    norms: int  # of the layer's width
    head_norms: bool  # queries and keys are normalized

    @classmethod
    def of(cls, model: PreTrainedModel) -> "LayerShape":
        config = model.config.get_text_config()
        width, heads = config.hidden_size, config.num_attention_heads
        head = getattr(config, "head_dim", None) or width // heads
        keys = (getattr(config, "num_key_value_heads", None) or heads) * head
        inner = getattr(config, "intermediate_size", None) or 4 * width
        weights = [getattr(module, "weight", None) for one in decoder_layers(model)[:1] for module in one.modules()]
        vectors = [weight.numel() for weight in weights if isinstance(weight, torch.Tensor) and weight.ndim == 1]
        norms = (max(2, vectors.count(width)), len(vectors) > vectors.count(width))
        return cls(config.num_hidden_layers, width, inner, heads, heads * head, keys, *norms)

    @property
    def kept(self) -> int:
        """Values a layer keeps per token: the norms' inputs and outputs, queries, keys, values, the attention output,
        and gate, up and their product."""
        normed = 2 * self.norms * self.width + (self.queries + self.keys if self.head_norms else 0)
        return normed + 2 * self.queries + 2 * self.keys + 3 * self.inner

    @property
    def checkpointed(self) -> int:
        """Only the layer's input."""
        return self.width


def available(device: torch.device) -> int:
    """Total bytes of the GPU's memory, or of this machine's."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def largest_pair(model: PreTrainedModel, memory: float, **more: Any) -> int:
    """Tokens of the longest pair that surely trains on a device with this much memory, recomputing activations."""

    def is_too_long(tokens: int) -> bool:
        return estimate(model, tokens, checkpointing=True, row=tokens, memory=memory, **more).total > SURE * memory

    return bisect.bisect_left(range(LARGEST_PAIR), True, key=is_too_long) - 1


def microbatch_tokens(scorer: PairScorer, given: int | None = None) -> int:
    """Tokens per microbatch: as given, or as many as keep a GPU busy and leave room for another stage beside this one.

    It is the same in training and scoring, and depends on the kind of GPU but not on what else runs there, so that
    a run can be repeated to the last bit."""
    if given is not None or scorer.device.type != "cuda":
        return given or scorer.default_budget
    return roomy_tokens(scorer.model, available(scorer.device), Ranks.current().world, scorer.compiles)


def roomy_tokens(model: PreTrainedModel, memory: float, world: int = 1, compiles: bool | None = None) -> int:
    """The microbatch with which training takes at most a good part of a GPU with this much memory."""
    fitting = (
        tokens
        for tokens in range(LARGEST_BUDGET, GPU_BUDGET, -STEP)
        if estimate(model, tokens, checkpointing=False, world=world, memory=memory, compiles=compiles).total
        <= ROOMY * memory
    )
    return next(fitting, GPU_BUDGET)


def spare_memory(scorer: PairScorer, compute: ComputeSettings, pairs: EncodedPairs) -> None:
    """Recomputes activations if the user says so, or if keeping them would run out of memory. A pair that does not fit
    even so is refused now, and not when its turn comes."""
    room, budget = available(scorer.device), microbatch_tokens(scorer, compute.token_budget)
    pair = int(pairs.valid_lengths.sum(axis=1).max(initial=0))  # alone in its microbatch if it is beyond the budget
    row = int(longest(pairs.valid_lengths).max(initial=0))
    how: dict[str, Any] = {
        "offload_optimizer": compute.offload_optimizer, "world": Ranks.current().world, "compiles": scorer.compiles,
    }  # fmt: skip
    needed = {
        flag: estimate(scorer.model, max(budget, pair), row=row, checkpointing=flag, **how).total
        for flag in (False, True)
    }
    if scorer.device.type == "cuda" and pair > budget and needed[True] > room:
        raise UserError(
            f"the longest pair has {pair:,} tokens and needs about {needed[True] / GIB:,.0f} GiB, and a device has "
            f"{room / GIB:,.0f}; pairs of up to {largest_pair(scorer.model, room, **how):,} tokens fit: "
            "lower data.max_length, train an adapter, or let more GPUs share the model (compute.ranks)"
        )
    wanted = compute.activation_checkpointing
    if needed[False] > USABLE * room if wanted is None else wanted:
        checkpoint_activations(scorer.model)


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Keeps only each layer's input and recomputes the rest in the backward pass."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
