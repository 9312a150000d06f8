"""Rotary embeddings whose frequencies depend on how long the input is.

Below a length of their own they are like all others, and any layout is right. Above it, the longest sequence in a
batch decides for all of them, so each sequence must go alone. Dynamic scaling moreover remembers the longest input it
has seen; it must be made to forget.
"""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from unmdpo.engine.text.encode import NO_LIMIT

LENGTH_DEPENDENT = ("longrope", "dynamic")


def rope_limit(model: PreTrainedModel) -> int:
    """The most tokens for which a sequence's frequencies do not depend on its length."""
    return min((_limit_of(module) for module in _embeddings(model)), default=NO_LIMIT)


def forget_length(model: PreTrainedModel) -> None:
    """As if the model had not seen any input yet."""
    for module in _embeddings(model):
        for name in [name for name in vars(module) if name.endswith("max_seq_len_cached")]:
            setattr(module, name, module.original_max_seq_len)
        for name, original in [*module.named_buffers(recurse=False), *vars(module).items()]:
            if name.endswith("original_inv_freq"):
                setattr(module, name.replace("original_", ""), original)


def _embeddings(model: PreTrainedModel) -> list[Any]:
    return [module for module in model.modules() if _depends_on_length(module)]


def _depends_on_length(module: nn.Module) -> bool:
    kinds = getattr(module, "rope_type", None)
    listed = kinds.values() if isinstance(kinds, dict) else [kinds]
    return any(name in str(kind) for kind in listed for name in LENGTH_DEPENDENT)


def _limit_of(module: Any) -> int:
    """Long rope names its own length; dynamic scaling starts at the context of the pretraining."""
    limits, nested = [int(module.original_max_seq_len)], getattr(module.config, "rope_parameters", None) or {}
    for found in (nested, *(value for value in nested.values() if isinstance(value, dict))):
        if "original_max_position_embeddings" in found:
            limits.append(int(found["original_max_position_embeddings"]))
    return min(limits)
