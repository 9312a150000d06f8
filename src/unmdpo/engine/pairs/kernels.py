"""Triton kernels for a GPU, where PyTorch's own take three times as long (docs/evidence/performance.md): sums over
logits, read once, whose gradient takes their place; and sums of gradients."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 4096, 8  # words at a time


@triton.jit
def _measure(logits, target, picked, normalizer, words, softcap, CAPPED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    most = tl.full([BLOCK], -1e38, tl.float32)  # finite: no difference of infinities
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, words, BLOCK):
        word = start + place
        value = tl.load(logits + row * words + word, mask=word < words, other=float("-inf")).to(tl.float32)
        if CAPPED:
            value = softcap * (2 * tl.sigmoid(2 * value / softcap) - 1)
            value = tl.where(word < words, value, float("-inf"))
        higher = tl.maximum(most, value)
        total = total * tl.exp(most - higher) + tl.exp(value - higher)
        most = higher
    top = tl.max(most, axis=0)
    log_sum = top + tl.log(tl.sum(total * tl.exp(most - top), axis=0))
    own = tl.load(logits + row * words + tl.load(target + row)).to(tl.float32)
    if CAPPED:
        own = softcap * (2 * tl.sigmoid(2 * own / softcap) - 1)
    tl.store(picked + row, own)
    tl.store(normalizer + row, log_sum)


@triton.jit
def _differentiate(logits, target, normalizer, gradient, words, softcap, CAPPED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = logits + row * words + word
    value = tl.load(there, mask=word < words, other=0.0).to(tl.float32)
    if CAPPED:
        value = softcap * (2 * tl.sigmoid(2 * value / softcap) - 1)
    by = (word == tl.load(target + row)).to(tl.float32) - tl.exp(value - tl.load(normalizer + row))
    by = by * tl.load(gradient + row)
    if CAPPED:
        share = value / softcap
        by = by * (1 - share * share)
    tl.store(there, by.to(logits.dtype.element_ty), mask=word < words)


@triton.jit
def _accumulate(total, more, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    added = tl.load(more + place, mask=inside).to(tl.float32)
    tl.store(total + place, tl.load(total + place, mask=inside) + added, mask=inside)


def accumulate(total: Tensor, more: Tensor) -> None:
    """Adds to a float32 tensor in place, as PyTorch does, but at the memory's speed when `more` has 16 bits."""
    grid = (triton.cdiv(total.numel(), BLOCK),)
    _accumulate[grid](total, more, total.numel(), BLOCK, num_warps=WARPS)


def measure(logits: Tensor, target: Tensor, softcap: float | None) -> tuple[Tensor, Tensor]:
    """(t,) the target's logit, and log Σ exp over the vocabulary, of logits (t, v) one after another in memory."""
    picked, normalizer = (torch.empty(len(logits), device=logits.device) for _ in range(2))
    if len(logits):
        _measure[(len(logits),)](logits, target, picked, normalizer, logits.shape[1], *_cap(softcap), num_warps=WARPS)
    return picked, normalizer


def differentiate(
    logits: Tensor, target: Tensor, normalizer: Tensor, gradient: Tensor, softcap: float | None
) -> Tensor:
    """(t, v) ∂/∂logits of Σ gradient·log p(target), in place of the logits."""
    grid = (len(logits), triton.cdiv(logits.shape[1], BLOCK))
    if len(logits):
        _differentiate[grid](
            logits, target, normalizer, gradient.contiguous(), logits.shape[1], *_cap(softcap), num_warps=WARPS
        )
    return logits


def _cap(softcap: float | None) -> tuple[Any, ...]:
    return (1.0 if softcap is None else softcap, softcap is not None, BLOCK)
