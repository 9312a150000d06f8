"""Packed pairs as sequences of their own, for attention that knows no masks.

A prompt with its chosen response is one causal sequence. The rejected response is another: its keys are the prompt's
once more, and then its own. So the prompt's keys are in two places, and their gradients are added.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ATTENTION = "unmdpo_sequences"  # the attention over them, in Transformers' registry
PADDING = 128  # most tokens of a sequence that only pads: one long one would cost its square


class Sequences(NamedTuple):
    """Sequence i has the queries [queries[i], queries[i + 1]) and, ending with them, keys [keys[i], keys[i + 1])."""

    queries: Tensor  # (s + 1,) int32
    keys: Tensor  # (s + 1,) int32
    token: Tensor  # (k,) the token that each key belongs to
    first: Tensor  # (length,) each token's key
    second: Tensor  # (length,) its key in the rejected response's sequence, or −1
    longest: int  # keys of a sequence, at most; a power of two, so that few lengths are compiled for
    window: int | None = None  # how many positions back a token sees, its own included

    def with_tensors(self, change: Callable[[Tensor], Tensor]) -> "Sequences":
        return Sequences(*(change(each) if isinstance(each, Tensor) else each for each in self))  # type: ignore[arg-type]

    @classmethod
    def of(cls, sizes: NDArray[np.int64], spans: NDArray[np.int64], length: int) -> "Sequences":
        """For pairs of `sizes` (n, 3), each of which takes up a span of the row; the rest of the row is padding."""
        ends = np.cumsum(spans)
        bases, prompts, apart = ends - spans, sizes[:, 0], sizes[:, 0] + sizes[:, 1]
        pads = np.arange(int(spans.sum()), length, PADDING)
        # runs of keys in order: prompt with chosen; the prompt again; rejected, with what pads the pair
        own = np.stack([apart, spans - apart], axis=1).ravel()
        starts = np.stack([bases, bases, bases + apart], axis=1).ravel()
        runs = np.stack([apart, np.where(spans > apart, prompts, 0), spans - apart], axis=1).ravel()
        again = np.tile([False, True, False], len(sizes))
        starts = np.concatenate([starts, pads])
        runs = np.concatenate([runs, np.minimum(PADDING, length - pads)])
        again = np.concatenate([again, np.zeros(len(pads), dtype=np.bool_)])
        place = np.cumsum(runs) - runs  # of each run among the keys
        token = np.repeat(starts - place, runs) + np.arange(runs.sum())
        at, repeats = np.arange(len(token)), np.repeat(again, runs)
        first, second = np.zeros(length, dtype=np.int64), np.full(length, -1)
        first[token[~repeats]], second[token[repeats]] = at[~repeats], at[repeats]
        lengths = np.stack([runs[0 : 3 * len(sizes) : 3], runs[1 : 3 * len(sizes) : 3] + own[1::2]], axis=1).ravel()
        return cls(
            queries=_edges(np.concatenate([own, runs[3 * len(sizes) :]])),
            keys=_edges(np.concatenate([lengths, runs[3 * len(sizes) :]])),
            token=torch.from_numpy(token),
            first=torch.from_numpy(first),
            second=torch.from_numpy(second),
            longest=1 << (int(max(lengths.max(initial=1), PADDING)) - 1).bit_length(),
        )


def _edges(lengths: NDArray[np.int64]) -> Tensor:
    """Where sequences of these lengths, one after another, start and end."""
    return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


class _Repeated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, token: Tensor, first: Tensor, second: Tensor) -> Tensor:
        ctx.save_for_backward(first, second)
        return values[token]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """Every token gathers the gradients of its keys: no sum over an order that changes."""
        first, second = ctx.saved_tensors
        (of_keys,) = gradients
        once = of_keys[first].float()
        twice = torch.where(second[:, None, None] >= 0, of_keys[second.clamp(min=0)].float(), 0.0)
        return (once + twice).to(of_keys.dtype), None, None, None


def repeated(values: Tensor, sequences: Sequences) -> Tensor:
    """(k, heads, d) from (length, heads, d): each key where its sequences want it."""
    found: Tensor = _Repeated.apply(values, sequences.token, sequences.first, sequences.second)  # type: ignore[no-untyped-call]
    return found
