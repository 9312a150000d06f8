"""From hidden states to logits, as this very model does it.

Models differ in their last step: some scale hidden states or logits, cap them, or add a bias. Instead of a table of
families, we ask the model: its own forward pass runs on hidden states of ours with a small head of ours, and the
result is compared with the plain product. A head that this does not explain is never guessed at.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from unmdpo.engine.models import body
from unmdpo.engine.pairs.logprobs import token_log_probs

PROBES, WORDS = 8, 64  # hidden states to ask with, and rows of the small head
HUGE = 1e9  # times that, every cap is reached
EXPLAINED = 1e-5  # largest difference to the model's logits, relative to the largest of them


@dataclass(frozen=True)
class Head:
    """logits = capped(scale · (W·h + b)), which a fused kernel can compute."""

    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Head | None":
        """What the model does with its output layer; None if its logits come about in another way."""
        layer = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if not isinstance(layer, nn.Linear) or body(model) is model:
            return None
        rng = torch.Generator().manual_seed(0)
        device = "cpu" if model.device.type == "meta" else model.device
        small = nn.Linear(layer.in_features, WORDS, bias=layer.bias is not None, device=device)
        hidden = torch.randn(1, PROBES, layer.in_features, generator=rng).to(device)
        with torch.no_grad():
            for parameter in small.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=rng) / parameter.shape[-1] ** 0.5)
            logits, saturated = (_asked(model, small, factor * hidden) for factor in (1, HUGE))
            if logits is None or saturated is None or logits.shape != small(hidden).shape:
                return None
            return cls._explaining(logits, small(hidden), _softcap(saturated))

    @classmethod
    def _explaining(cls, logits: Tensor, plain: Tensor, softcap: float | None) -> "Head | None":
        uncapped = logits.double()
        if softcap is not None:
            uncapped = softcap * torch.atanh(uncapped / softcap)
        fitted = float((uncapped * plain).sum() / (plain.double() ** 2).sum())
        head = cls(_rounded(fitted), softcap)
        difference = (head.logits(plain) - logits).abs().max()
        return head if difference <= EXPLAINED * logits.abs().max() else None

    def logits(self, plain: Tensor) -> Tensor:
        scaled = self.scale * plain
        return scaled if self.softcap is None else self.softcap * torch.tanh(scaled / self.softcap)

    def log_probs(self, layer: nn.Linear, hidden: Tensor, target: Tensor) -> Tensor:
        """(t,) log p(target) from (t, d) hidden states."""
        bias: Tensor | None = layer.bias
        if self.scale != 1.0:
            hidden = hidden * self.scale
            bias = None if bias is None else bias * self.scale
        return token_log_probs(hidden, layer.weight, target, self.softcap, bias)


def _softcap(saturated: Tensor) -> float | None:
    """The size of all logits, if huge hidden states make them all equal in size."""
    sizes = saturated.abs()
    return float(sizes.max()) if bool(sizes.max() - sizes.min() <= EXPLAINED * sizes.max()) else None


def _rounded(value: float) -> float:
    """In every configuration we know, a scale or one over it is a round number."""
    if value == 0 or not abs(value) < 1e30:
        return value
    return min((float(f"{value:.6g}"), 1 / float(f"{1 / value:.6g}")), key=lambda near: abs(near - value))


class _Given(dict[str, Any]):
    """Stands in for a decoder's output: our hidden states, and nothing else."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.get(key)
        return () if isinstance(key, slice) else (self["last_hidden_state"] if key == 0 else None)


def _asked(model: PreTrainedModel, small: nn.Linear, hidden: Tensor) -> Tensor | None:
    """(1, n, words) what the model makes of these hidden states (1, n, d); None if it cannot be asked this way."""
    tokens = torch.zeros(hidden.shape[:2], dtype=torch.long, device=model.device)
    try:
        with _replaced(model, small, hidden):
            logits = model(input_ids=tokens, use_cache=False).logits
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a model's own code makes of an output without its other parts
        return None
    return logits if isinstance(logits, Tensor) and logits.device == hidden.device else None


@contextlib.contextmanager
def _replaced(model: PreTrainedModel, small: nn.Linear, hidden: Tensor) -> Iterator[None]:
    """The decoder returns `hidden`, and the head is the small one."""
    decoder, layer = body(model), model.get_output_embeddings()  # type: ignore[no-untyped-call]
    own, owners = decoder.forward, [module for module in model.modules() if layer in module._modules.values()]
    names = [next(name for name, child in owner._modules.items() if child is layer) for owner in owners]
    decoder.forward = lambda *_, **__: _Given(last_hidden_state=hidden)
    try:
        for owner, name in zip(owners, names, strict=True):
            owner._modules[name] = small
        yield
    finally:
        decoder.forward = own
        for owner, name in zip(owners, names, strict=True):
            owner._modules[name] = layer
