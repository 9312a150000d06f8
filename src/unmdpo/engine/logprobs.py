"""Log-probabilities of chosen tokens straight from hidden states, logits never kept.

A vocabulary of 128,256 makes logits the largest tensor of a training step by far. Here they exist for
one chunk of tokens at a time, in the forward pass and again in the backward pass.
"""

from typing import Any

import torch
from torch import Tensor

CHUNK = 2048  # tokens whose logits exist at once


class _ChunkedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, softcap: float | None) -> Tensor:
        """(t, d), (v, d), (t,) → (t,) float32 log-probabilities (at least float32)."""
        picked, normalisers = [], []
        for start in range(0, len(hidden), CHUNK):
            rows = slice(start, start + CHUNK)
            logits = _logits(hidden[rows], weight, softcap)
            normaliser = torch.logsumexp(logits, dim=-1)
            picked.append(logits.gather(1, target[rows, None]).squeeze(1) - normaliser)
            normalisers.append(normaliser)
        ctx.softcap = softcap
        ctx.save_for_backward(hidden, weight, target, torch.cat(normalisers))
        return torch.cat(picked)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden, weight, target, normaliser = ctx.saved_tensors
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        by_hidden = torch.empty_like(hidden) if wants_hidden else None
        by_weight = torch.zeros_like(weight, dtype=_wide(weight)) if wants_weight else None
        for start in range(0, len(hidden), CHUNK):
            rows = slice(start, start + CHUNK)
            h, t, g = hidden[rows], target[rows, None], gradients[0][rows, None]
            logits = _logits(h, weight, ctx.softcap)
            by_logits = torch.exp(logits - normaliser[rows, None]).mul_(-g)
            by_logits.scatter_add_(1, t, g.to(by_logits.dtype))
            if ctx.softcap is not None:
                by_logits *= 1 - (logits / ctx.softcap) ** 2
            by_logits = by_logits.to(weight.dtype)
            if by_hidden is not None:
                by_hidden[rows] = by_logits @ weight
            if by_weight is not None:
                by_weight += by_logits.T @ h
        return by_hidden, None if by_weight is None else by_weight.to(weight.dtype), None, None


def token_log_probs(hidden: Tensor, weight: Tensor, target: Tensor, softcap: float | None = None) -> Tensor:
    """log p(target) of each row of `hidden` under a head without bias, and its gradients."""
    if not len(hidden):
        return hidden.sum(-1).to(_wide(hidden))
    logs: Tensor = _ChunkedLogProbs.apply(hidden, weight, target, softcap)  # type: ignore[no-untyped-call]
    return logs


def _logits(hidden: Tensor, weight: Tensor, softcap: float | None) -> Tensor:
    logits = (hidden @ weight.T).to(_wide(hidden))
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def _wide(values: Tensor) -> torch.dtype:
    return torch.float64 if values.dtype == torch.float64 else torch.float32
