"""AdamW with explicit state, for the few parameters trained beside a policy.

PyTorch's optimizer classes import a compiler on first use, which takes longer than fitting a scale, and keep their
state in dictionaries keyed by parameters. Here the state is plain tensors that can be saved directly.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

BETAS, EPS, CLIP = (0.9, 0.999), 1e-8, 1.0


class Moments(NamedTuple):
    first: list[Tensor]
    second: list[Tensor]
    step: int

    @classmethod
    def zeros(cls, parameters: Sequence[Tensor]) -> "Moments":
        return cls([torch.zeros_like(p) for p in parameters], [torch.zeros_like(p) for p in parameters], 0)


def clipped(gradients: Sequence[Tensor], limit: float = CLIP) -> list[Tensor]:
    """The gradients, scaled down together if their norm exceeds the limit."""
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    return [gradient * torch.clamp(limit / (norm + 1e-6), max=1.0) for gradient in gradients]


@torch.no_grad()
def adamw(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    moments: Moments,
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
) -> tuple[list[Tensor], Moments]:
    """The parameters and moments after one step; nothing is changed in place."""
    step, (b1, b2) = moments.step + 1, BETAS
    first = [b1 * m + (1 - b1) * g for m, g in zip(moments.first, gradients, strict=True)]
    second = [b2 * v + (1 - b2) * g * g for v, g in zip(moments.second, gradients, strict=True)]
    moved = []
    for p, m, v in zip(parameters, first, second, strict=True):
        direction = (m / (1 - b1**step)) / ((v / (1 - b2**step)).sqrt() + EPS)
        moved.append(p * (1 - learning_rate * weight_decay) - learning_rate * direction)
    return moved, Moments(first, second, step)
