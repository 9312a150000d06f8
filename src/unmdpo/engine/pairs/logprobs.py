"""Log-probabilities of given tokens straight from hidden states, without keeping the logits.

With a vocabulary of 128,256, logits are by far the largest tensor of a training step. Here they exist for one chunk of
tokens at a time, in the forward pass and again in the backward pass. Sums over the vocabulary are float32; on a GPU
each chunk's logits are read once, by one fused kernel.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

CHUNK = 4096  # tokens with logits in memory at once


class _ChunkedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, softcap: float | None
    ) -> Tensor:
        """(t, d), (v, d), (v,), (t,) → (t,) log-probabilities, float32 at least."""
        measure, picked, normalizers = _on(hidden.device, _measure), [], []
        for start in range(0, len(hidden), CHUNK):
            rows = slice(start, start + CHUNK)
            logit, normalizer = measure(linear(hidden[rows], weight, bias), target[rows], softcap)
            picked.append(logit - normalizer)
            normalizers.append(normalizer)
        ctx.softcap = softcap
        ctx.save_for_backward(hidden, weight, bias, target, torch.cat(normalizers))
        return torch.cat(picked)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        hidden, weight, bias, target, normalizer = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        differentiate = _on(hidden.device, _differentiate)
        by_hidden = torch.empty_like(hidden) if wants_hidden else None
        by_weight = torch.zeros_like(weight, dtype=_wide(weight)) if wants_weight else None
        by_bias = torch.zeros_like(bias, dtype=_wide(bias)) if wants_bias else None
        for start in range(0, len(hidden), CHUNK):
            rows = slice(start, start + CHUNK)
            logits = linear(hidden[rows], weight, bias)
            by_logits = differentiate(logits, target[rows], normalizer[rows], gradients[0][rows], ctx.softcap)
            if by_hidden is not None:
                by_hidden[rows] = by_logits @ weight
            if by_weight is not None:
                by_weight += by_logits.T @ hidden[rows]
            if by_bias is not None:
                by_bias += by_logits.sum(dim=0, dtype=by_bias.dtype)
        return by_hidden, _like(by_weight, weight), _like(by_bias, bias), None, None


def token_log_probs(
    hidden: Tensor, weight: Tensor, target: Tensor, softcap: float | None = None, bias: Tensor | None = None
) -> Tensor:
    """log p(target) for each row of `hidden`; differentiable."""
    if not len(hidden):
        return hidden.sum(-1).to(_wide(hidden))
    logs: Tensor = _ChunkedLogProbs.apply(hidden, weight, bias, target, softcap)  # type: ignore[no-untyped-call]
    return logs


def _like(gradient: Tensor | None, parameter: Tensor) -> Tensor | None:
    return None if gradient is None else gradient.to(parameter.dtype)


def _measure(logits: Tensor, target: Tensor, softcap: float | None) -> tuple[Tensor, Tensor]:
    """(t,) the target's logit, and log Σ exp over the vocabulary."""
    wide = _capped(logits, softcap)
    return wide.gather(1, target[:, None]).squeeze(1), torch.logsumexp(wide, dim=-1)


def _differentiate(
    logits: Tensor, target: Tensor, normalizer: Tensor, gradient: Tensor, softcap: float | None
) -> Tensor:
    """(t, v) ∂/∂logits of Σ gradient·log p(target), in the logits' own precision."""
    wide = _capped(logits, softcap)
    is_target = torch.arange(logits.shape[1], device=logits.device)[None, :] == target[:, None]
    by_logits = (is_target.to(wide.dtype) - torch.exp(wide - normalizer[:, None])) * gradient[:, None]
    if softcap is not None:
        by_logits = by_logits * (1 - (wide / softcap) ** 2)
    return by_logits.to(logits.dtype)


def _capped(logits: Tensor, softcap: float | None) -> Tensor:
    wide = logits.to(_wide(logits))
    return wide if softcap is None else softcap * torch.tanh(wide / softcap)


def _on(device: torch.device, function: Callable[..., Any]) -> Callable[..., Any]:
    return _compiled(function) if device.type == "cuda" else function


@lru_cache(maxsize=2)
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(function, dynamic=True)
    return compiled


def _wide(values: Tensor) -> torch.dtype:
    return torch.float64 if values.dtype == torch.float64 else torch.float32
