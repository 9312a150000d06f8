"""Log-probabilities of given tokens straight from hidden states.

With a vocabulary of 128,256, logits are by far the largest tensor of a training step. Where memory is plentiful they
are kept for the backward pass, in the model's own precision; elsewhere they exist for one chunk of tokens at a time,
and are made again. Sums over the vocabulary are float32; on a GPU, logits are read once for each.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from unmdpo.engine.pairs.fused import has_kernels, kernels

CHUNK = 4096  # tokens whose logits are made at once
KEPT_SHARE = 1 / 16  # of a device's memory, at most, for logits that wait for the backward pass
ROOM = 2**28  # bytes for them on a CPU


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, softcap: float | None
    ) -> Tensor:
        """(t, d), (v, d), (v,), (t,) → (t,) log-probabilities, float32 at least."""
        measure, picked, normalizers, kept = _functions(hidden)[0], list[Tensor](), list[Tensor](), list[Tensor]()
        if any(ctx.needs_input_grad) and _room_for(hidden, weight):
            kept = [hidden.new_empty(len(hidden), len(weight))]
        for rows in _chunks(hidden):
            logits = _logits(hidden[rows], weight, bias, kept[0][rows] if kept else None)
            logit, normalizer = measure(logits, target[rows], softcap)
            picked.append(logit - normalizer)
            normalizers.append(normalizer)
        ctx.softcap = softcap
        ctx.save_for_backward(hidden, weight, bias, target, torch.cat(normalizers), *kept)
        return torch.cat(picked)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        hidden, weight, bias, target, normalizer, *kept = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        differentiate = _functions(hidden)[1]
        if kept:  # one product each, which sums in float32 by itself
            by_logits = differentiate(kept[0], target, normalizer, gradients[0], ctx.softcap)
            by_hidden = by_logits @ weight if wants_hidden else None
            by_weight = by_logits.T @ hidden if wants_weight else None
            by_bias = by_logits.sum(dim=0, dtype=_wide(bias)) if wants_bias else None
            return by_hidden, by_weight, _like(by_bias, bias), None, None
        by_hidden = torch.empty_like(hidden) if wants_hidden else None
        by_weight = torch.zeros_like(weight, dtype=_wide(weight)) if wants_weight else None
        by_bias = torch.zeros_like(bias, dtype=_wide(bias)) if wants_bias else None
        for rows in _chunks(hidden):
            logits = _logits(hidden[rows], weight, bias)
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
    """log p(target) for each row of `hidden`; differentiable, once."""
    if not len(hidden):
        return hidden.sum(-1).to(_wide(hidden))
    logs: Tensor = _LogProbs.apply(hidden, weight, bias, target, softcap)  # type: ignore[no-untyped-call]
    return logs


def _chunks(hidden: Tensor) -> Iterator[slice]:
    return (slice(start, start + CHUNK) for start in range(0, len(hidden), CHUNK))


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    """(t, v), written to `out` if it is given."""
    if out is None:
        return linear(hidden, weight, bias)
    return torch.mm(hidden, weight.T, out=out) if bias is None else torch.addmm(bias, hidden, weight.T, out=out)


def _room_for(hidden: Tensor, weight: Tensor) -> bool:
    """Whether all logits may be kept."""
    room: float = ROOM
    if hidden.device.type == "cuda":
        room = KEPT_SHARE * torch.cuda.get_device_properties(hidden.device).total_memory
    return len(hidden) * len(weight) * hidden.element_size() <= room


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


def _functions(hidden: Tensor) -> tuple[Any, Any]:
    """How to measure and to differentiate: with kernels of our own on a GPU."""
    return (kernels().measure, kernels().differentiate) if has_kernels(hidden) else (_measure, _differentiate)


def _wide(values: Tensor) -> torch.dtype:
    return torch.float64 if values.dtype == torch.float64 else torch.float32
