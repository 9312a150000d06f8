"""A prompt's own comparisons say something about its scale beyond its features: an empirical-Bayes offset.

    log q_j = b·tanh((a_j + v_j)/b) − ū,   v_j ~ N(0, σ²) before its comparisons are seen

v_j is the most likely value given the prompt's rows; σ is chosen by how well offsets from one half of every prompt's
comparisons fit the other half. With one comparison per prompt nothing can be held out, and σ = 0.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from unmdpo.scale import maps
from unmdpo.scale.data import Rows
from unmdpo.scale.maps import Center
from unmdpo.scale.ridge import Losses, LossesOf

SPREADS = (0.05, 0.1, 0.2, 0.4, 0.8)  # σ
STEPS = 60


class Own(NamedTuple):
    """The chosen σ, and every unit's offset."""

    spread: float
    offset: Tensor  # (u,)


def own_offsets(raw: Tensor, rows: Rows, losses_of: LossesOf) -> Own:
    """Offsets to the raw scales (u,) of units, from their valid rows; zeros unless they help on other rows by more
    than one standard error."""
    none, place = torch.zeros_like(raw), rows.place_in_unit()
    repeated = torch.bincount(rows.unit, minlength=len(raw))[rows.unit] > 1
    if not repeated.any():
        return Own(0.0, none)
    halves = [rows.select(place % 2 == side) for side in (0, 1)]
    judged = [rows.select((place % 2 == side) & repeated) for side in (0, 1)]

    def losses(spread: float) -> Tensor:
        """(u,) on each half, of offsets from the other; summed by unit."""
        total = torch.zeros_like(raw)
        for seen, unseen in ((halves[0], judged[1]), (halves[1], judged[0])):
            offset = _offsets(raw, losses_of(seen), spread) if spread else none
            total.index_add_(0, unseen.unit, losses_of(unseen)(_log_scale(raw + offset)))
        return total

    without = losses(0.0)
    gains = {spread: without - losses(spread) for spread in SPREADS}
    best = max(SPREADS, key=lambda spread: float(gains[spread].sum()))
    gain = gains[best]
    if float(gain.sum()) <= float(torch.sqrt((gain**2).sum())):
        return Own(0.0, none)
    return Own(best, _offsets(raw, losses_of(rows), best))


def _offsets(raw: Tensor, losses: Losses, spread: float) -> Tensor:
    """(u,) the most likely offsets. Centering is part of the problem: otherwise all would rise together, since any
    larger q loses less where residuals are negative."""
    offset = torch.zeros_like(raw, requires_grad=True)
    search = torch.optim.LBFGS([offset], max_iter=STEPS, tolerance_grad=1e-6, line_search_fn="strong_wolfe")

    def value() -> Tensor:
        search.zero_grad()
        total = losses(_log_scale(raw + offset)).sum() + (offset**2).sum() / (2 * spread**2)
        total.backward()  # type: ignore[no-untyped-call]
        return total

    search.step(value)  # type: ignore[no-untyped-call]
    return offset.detach()


def _log_scale(raw: Tensor) -> Tensor:
    return maps.centered(raw, maps.center_of(raw))


def with_own(raw: Tensor, own: Own) -> tuple[Tensor, Center]:
    """(u,) log q of the units themselves, and the center over them."""
    center = maps.center_of(raw + own.offset)
    return maps.centered(raw + own.offset, center), center
