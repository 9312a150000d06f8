"""How much memory training needs, before it is spent.

Weights, masters, gradients and moments are counted exactly; activations by what a decoder layer keeps
for its backward pass. `benchmarks/engine.py` prints the estimate beside the measured peak.
"""

import os
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from unmdpo.engine.logprobs import CHUNK

USABLE = 0.9  # share of a device's memory that we plan with
FLOAT32 = 4


@dataclass(frozen=True)
class Memory:
    """Bytes on the device, by purpose."""

    weights: int
    state: int  # masters, gradients, moments
    activations: int
    head: int  # logits of a chunk, and the head's gradient

    @property
    def total(self) -> int:
        return self.weights + self.state + self.activations + self.head


def estimate(
    model: PreTrainedModel,
    token_budget: int,
    *,
    checkpointing: bool,
    offload_optimizer: bool = False,
    world: int = 1,
) -> Memory:
    compute = torch.finfo(model.dtype).bits // 8
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    masters = 0 if compute == FLOAT32 else FLOAT32
    moments = 0 if offload_optimizer else 2 * FLOAT32
    shape = LayerShape.of(model)
    kept = shape.checkpointed if checkpointing else shape.kept
    working = shape.kept if checkpointing else 0  # the one layer that is being recomputed
    vocabulary = shape.width * model.config.get_text_config().vocab_size
    chunk = min(CHUNK, token_budget) * model.config.get_text_config().vocab_size
    return Memory(
        weights=compute * total // world,
        state=(masters + FLOAT32 + moments) * trained // world,
        activations=token_budget * compute * (shape.layers * kept + working),
        head=chunk * 2 * compute + (vocabulary * (FLOAT32 + compute) if trained == total else 0),
    )


@dataclass(frozen=True)
class LayerShape:
    """Widths of a decoder, from any Transformers configuration."""

    layers: int
    width: int
    inner: int
    queries: int
    keys: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> "LayerShape":
        config = model.config.get_text_config()
        width, heads = config.hidden_size, config.num_attention_heads
        head = getattr(config, "head_dim", None) or width // heads
        keys = (getattr(config, "num_key_value_heads", None) or heads) * head
        inner = getattr(config, "intermediate_size", None) or 4 * width
        return cls(config.num_hidden_layers, width, inner, heads * head, keys)

    @property
    def kept(self) -> int:
        """Values a layer keeps for each token: both norms' inputs and outputs, queries, keys, values,
        attention's result, and gate, up and their product."""
        return 4 * self.width + 2 * self.queries + 2 * self.keys + 3 * self.inner

    @property
    def checkpointed(self) -> int:
        """Only the layer's input."""
        return self.width


def available(device: torch.device) -> int:
    """Bytes of the whole device, or of this machine's memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def needs_checkpointing(
    model: PreTrainedModel, token_budget: int, *, offload_optimizer: bool = False, world: int = 1
) -> bool:
    """Whether keeping all activations would not fit."""
    plain = estimate(
        model, token_budget, checkpointing=False, offload_optimizer=offload_optimizer, world=world
    )
    return plain.total > USABLE * available(model.device)


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Keeps each layer's input only and computes the rest again in the backward pass."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
