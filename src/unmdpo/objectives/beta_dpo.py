"""β-DPO: β follows the batch's mean log-ratio, and outlying pairs are dropped at random.

("Batch-adaptive coefficients".) Statistics are float64 and on the CPU, so every rank draws the same subset.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from unmdpo.objectives.pairs import PairLogps
from unmdpo.objectives.random_state import drawn, new_generator

SEED_OFFSET = 93
SPREAD_FLOOR = 1e-10


class BetaState(NamedTuple):
    mean: Tensor  # () m_t, moving mean of batch-mean log-ratios
    spread: Tensor  # () v_t, moving mean of batch standard deviations
    generator: Tensor  # (bytes,) state of the sampling generator


class BetaKnobs(NamedTuple):
    beta: Tensor  # (n,) the batch's β_t
    weight: Tensor  # (n,) n/|S| for selected pairs, 0 for the others


def init(seed: int, **_: float) -> BetaState:
    zero = torch.zeros((), dtype=torch.float64)
    return BetaState(zero, zero + 1, new_generator(seed + SEED_OFFSET))


def adapt(
    log_ratios: Tensor,
    state: BetaState,
    train: bool,
    *,
    beta: float,
    alpha: float,
    keep: float,
    momentum: float,
    floor: float,
) -> tuple[BetaKnobs, BetaState]:
    """Updates m and v, then uses them to select pairs and set β_t; validation keeps all pairs and updates nothing."""
    a = log_ratios.detach().double().cpu()  # (n,)
    n = len(a)
    if train:
        batch_spread = a.std() if n > 1 else a.new_zeros(())
        state = state._replace(
            mean=momentum * state.mean + (1 - momentum) * a.mean(),
            spread=momentum * state.spread + (1 - momentum) * batch_spread,
        )
        selected, generator = drawn(state.generator, lambda rng: _select(a, state, keep, rng))
        state = state._replace(generator=generator)
    else:
        selected = torch.arange(n)
    beta_t = (beta * (1 + alpha * (a[selected].mean() - state.mean))).clamp(min=floor)
    weight = torch.zeros_like(a)
    weight[selected] = n / max(1, len(selected))
    knobs = BetaKnobs(beta_t.expand(n).to(log_ratios.device), weight.to(log_ratios.device))
    return knobs, state


def _select(a: Tensor, state: BetaState, keep: float, rng: torch.Generator) -> Tensor:
    """max(1, ⌊keep·n⌋) pairs without replacement, weights exp(−½((A − m)/v)²)."""
    log_weights = -0.5 * ((a - state.mean) / state.spread.clamp(min=SPREAD_FLOOR)) ** 2
    weights = (log_weights - log_weights.max()).exp()  # the largest is 1: never all zero
    weights = weights.clamp(min=torch.finfo(torch.float64).tiny)  # and always enough to draw from
    return torch.multinomial(weights, max(1, int(keep * len(a))), replacement=False, generator=rng)


def loss(pairs: PairLogps, knobs: BetaKnobs, **_: float) -> Tensor:
    """ζ(−β_t·A) on the selected pairs, weighted so that the mean over all pairs is the mean over the selected ones."""
    a = pairs.log_ratio
    return knobs.weight.to(a) * -logsigmoid(knobs.beta.to(a) * a)
