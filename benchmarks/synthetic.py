"""Rows from a world with a known noise scale: the paper's heteroskedastic random-utility model.

U = Δ* + q*(y)·η with logistic η decides who wins and, by |U|, how strongly. A pilot that knows Δ* up to `pilot_noise`
supplies the evidence, oriented by the observed direction.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from unmdpo.scale import Rows, Units

THRESHOLDS = torch.tensor([1.0, 2.5])  # the |U| at which strength becomes 2, and 3


@dataclass(frozen=True)
class World:
    units: Units
    rows: Rows
    true_scale: Tensor  # (u,) q*
    gap_size: Tensor  # (u,) typical |Δ*| of each prompt


def random_utility_world(
    prompts: int,
    *,
    rows_per_prompt: int = 1,
    noise_spread: float = 0.7,
    gap_spread: float = 0.0,
    pilot_noise: float = 0.0,
    dimension: int = 64,
    seed: int = 0,
) -> World:
    """log q* and the log of the typical gap are linear in the features, with these standard deviations."""
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(prompts, dimension, generator=rng)
    directions = torch.randn(dimension, 2, generator=rng)
    signals = features @ (directions / directions.norm(dim=0))  # (u, 2) unit variance
    scale, gap_size = (noise_spread * signals[:, 0]).exp(), 1.5 * (gap_spread * signals[:, 1]).exp()
    unit = torch.arange(prompts).repeat_interleave(rows_per_prompt)
    gap = gap_size[unit] * torch.randn(len(unit), generator=rng)
    uniform = torch.rand(len(unit), generator=rng).clamp(1e-6, 1 - 1e-6)
    utility = gap + scale[unit] * (uniform.log() - (-uniform).log1p())
    estimate = gap + pilot_noise * torch.randn(len(unit), generator=rng)
    rows = Rows(
        unit=unit, evidence=utility.sign() * estimate, strength=1.0 + torch.bucketize(utility.abs(), THRESHOLDS)
    )
    return World(Units(features), rows, scale, gap_size)
