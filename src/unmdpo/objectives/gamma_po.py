"""γ-PO applied to DPO: each pair's margin is found by mirror descent over the batch and a queue.

("Batch-adaptive coefficients".) The loss uses the margin's deviation from the base margin, taken before the last
probability update, as in the paper's frozen implementation.
"""

import random
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from unmdpo.objectives.pairs import PairLogps
from unmdpo.objectives.random_state import new_python_random, python_random, python_state

QUEUE_SEED, SAMPLE_SEED, VALIDATION_SEED = 91, 92, 502
INITIAL_VALUES = 8
LOG_FLOOR = 1e-10


class GammaState(NamedTuple):
    queue: Tensor  # (m,) recent scaled log-ratios, oldest first
    random: Tensor  # (words,) state of the training-time sampler
    seed: Tensor  # () policy seed


class GammaKnobs(NamedTuple):
    margin: Tensor  # (n,) δ_j


def init(seed: int, **_: float) -> GammaState:
    rng = random.Random(seed + QUEUE_SEED)
    values = [rng.gauss(0, 1) for _ in range(INITIAL_VALUES)]
    return GammaState(
        queue=torch.tensor(values, dtype=torch.float64),
        random=new_python_random(seed + SAMPLE_SEED),
        seed=torch.tensor(seed),
    )


def adapt(
    log_ratios: Tensor,
    state: GammaState,
    train: bool,
    *,
    beta: float,
    gamma: float,
    regularization: float,
    step: float,
    iterations: int,
    capacity: int,
    sample: int,
) -> tuple[GammaKnobs, GammaState]:
    """Margins of the current pairs; in training, the sampler advances and the pairs join the queue."""
    a = beta * log_ratios.detach().double().cpu()  # (n,)
    rng = python_random(state.random) if train else random.Random(int(state.seed) + VALIDATION_SEED)
    recalled = rng.sample(state.queue.tolist(), max(0, min(len(state.queue), int(sample) - len(a))))
    combined = torch.cat([a, a.new_tensor(recalled)])  # (n_c,)
    margins = _mirror_descent(combined, gamma, regularization, step, int(iterations))
    knobs = GammaKnobs((margins[: len(a)] - gamma).to(log_ratios.device))
    if train:
        queue = torch.cat([state.queue, a])[-int(capacity) :]
        state = state._replace(queue=queue, random=python_state(rng))
    return knobs, state


def _mirror_descent(a: Tensor, gamma: float, regularization: float, step: float, iterations: int) -> Tensor:
    """γ^{(iterations − 1)}: the margins before the last probability update."""
    n = len(a)
    p = torch.full_like(a, 1 / n)
    for _ in range(iterations - 1):
        h = regularization * (1 + torch.log(n * (p + LOG_FLOOR))) + gamma * torch.sigmoid(gamma * n * p - a)
        p = torch.softmax(torch.log(p) - step * h, dim=0)  # p·e^{−step·h}, normalized without underflow
    return gamma * n * p


def loss(pairs: PairLogps, knobs: GammaKnobs, *, beta: float, **_: float) -> Tensor:
    """ζ(δ − β₀A)."""
    a = pairs.log_ratio
    return -logsigmoid(beta * a - knobs.margin.to(a))
