"""A prompt's own comparisons say something about its scale beyond its features: an empirical-Bayes offset.

    log q_j = b·tanh((a_j + v_j)/b) − ū,   v_j ~ N(0, σ²) before its comparisons are seen

v_j is the most likely value given the prompt's rows; σ is chosen by how well offsets from one half of every prompt's
comparisons fit the other half. With one comparison per prompt nothing can be held out, and σ = 0.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unmdpo.scale import maps
from unmdpo.scale.check import ALPHA
from unmdpo.scale.data import Rows
from unmdpo.scale.evidence_size import sizes, split
from unmdpo.scale.fitting import Losses, LossesOf

SPREADS = (0.05, 0.1, 0.2, 0.4, 0.8)  # σ
STEPS, EXCHANGES = 60, 199


class PromptOffsets(NamedTuple):
    """The chosen σ, and every unit's offset; σ = 0 if there are none."""

    spread: float
    offset: Tensor  # (u,)
    gain: float = 0.0  # per row: how much less one half of a unit's rows loses with offsets from the other
    chance: float = 1.0  # how often other units' offsets gain as much


def fit_offsets(raw: Tensor, rows: Rows, losses_of: LossesOf, bound: float) -> PromptOffsets:
    """Offsets to the raw scales (u,) of units, from their valid rows; zeros unless offsets from one half of a unit's
    rows help on the other, and what they say beyond the size of its evidence more than that of other units does."""
    place, several = rows.place_in_unit(), torch.bincount(rows.unit, minlength=len(raw)) > 1
    if not several.any():
        return PromptOffsets(0.0, torch.zeros_like(raw))
    halves = [rows.select(place % 2 == side) for side in (0, 1)]
    judged = [losses_of(rows.select((place % 2 == side) & several[rows.unit])) for side in (1, 0)]
    without = [losses(maps.centered_here(raw, bound)) for losses in judged]

    def gain(offsets: Sequence[Tensor]) -> float:
        """How much smaller the loss on each half is with offsets from the other."""
        return sum(
            float((before - losses(maps.centered_here(raw + offset, bound))).sum())
            for before, losses, offset in zip(without, judged, offsets, strict=True)
        )

    offsets = {spread: [best_offsets(raw, losses_of(half), spread, bound) for half in halves] for spread in SPREADS}
    best = max(SPREADS, key=lambda spread: gain(offsets[spread]))
    found, everyone = gain(offsets[best]), torch.zeros(len(raw))
    parts = [
        split(offset, sizes(half, len(raw)), everyone) for offset, half in zip(offsets[best], halves, strict=True)
    ]
    chance = _chance(gain, parts, several)
    if found <= max(0.0, gain([follows for follows, _ in parts])) or chance > ALPHA / len(SPREADS):
        return PromptOffsets(0.0, torch.zeros_like(raw))
    return PromptOffsets(
        best, best_offsets(raw, losses_of(rows), best, bound), found / int(several[rows.unit].sum()), chance
    )


def _chance(
    gain: Callable[[Sequence[Tensor]], float], parts: Sequence[tuple[Tensor, Tensor]], members: Tensor
) -> float:
    """How often offsets gain as much if what they say beyond the size of the evidence is exchanged among units with
    several rows. `parts`: what follows the size, and the rest, for both halves."""
    rng, places, as_large = torch.Generator().manual_seed(0), members.nonzero().flatten(), 0
    true = gain([follows + rest for follows, rest in parts])
    for _ in range(EXCHANGES):
        order = torch.arange(len(members))
        order[places] = places[torch.randperm(len(places), generator=rng)]
        as_large += gain([follows + rest[order] for follows, rest in parts]) >= true
    return (1 + as_large) / (1 + EXCHANGES)


def best_offsets(raw: Tensor, losses: Losses, spread: float, bound: float) -> Tensor:
    """(u,) the most likely offsets. Centering is part of the problem: otherwise all would rise together, since any
    larger q loses less where residuals are negative."""
    offset = torch.zeros_like(raw, requires_grad=True)
    search = torch.optim.LBFGS([offset], max_iter=STEPS, tolerance_grad=1e-6, line_search_fn="strong_wolfe")

    def value() -> Tensor:
        search.zero_grad()
        total = losses(maps.centered_here(raw + offset, bound)).sum() + (offset**2).sum() / (2 * spread**2)
        total.backward()  # type: ignore[no-untyped-call]
        return total

    search.step(value)  # type: ignore[no-untyped-call]
    return offset.detach()
