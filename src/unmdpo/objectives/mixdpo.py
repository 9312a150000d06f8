"""LogNormal MixDPO: β is a random variable whose two parameters are learned alongside the policy.

("Batch-adaptive coefficients".) The policy uses draws made before this batch updates the parameters, detached from
them.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from unmdpo.core.adamw import Moments, adamw, clipped
from unmdpo.objectives.pairs import PairLogps
from unmdpo.objectives.random_state import drawn, new_generator

TRAIN_SEED, VALIDATION_SEED = 501, 1501


class MixState(NamedTuple):
    parameters: Tensor  # (2,) μ and ρ, of log b = μ + softplus(ρ)·ε
    first_moment: Tensor  # (2,) AdamW
    second_moment: Tensor  # (2,)
    step: Tensor  # ()
    generator: Tensor  # (bytes,)
    seed: Tensor  # ()


class MixKnobs(NamedTuple):
    beta: Tensor  # (n, draws) b_is


def init(seed: int, *, mean: float, spread: float, **_: float) -> MixState:
    """μ = log(0.1), softplus(ρ) = 0.6 by default."""
    parameters = torch.tensor([math.log(mean), math.log(math.expm1(spread))], dtype=torch.float64)
    zeros = torch.zeros_like(parameters)
    return MixState(parameters, zeros, zeros, torch.tensor(0), new_generator(seed + TRAIN_SEED), torch.tensor(seed))


def adapt(
    log_ratios: Tensor, state: MixState, train: bool, *, draws: int, learning_rate: float, **_: float
) -> tuple[MixKnobs, MixState]:
    """Draws b for every pair; in training, μ and ρ then take one AdamW step on the mixture loss."""
    a = log_ratios.detach().double().cpu()  # (n,)
    shape = (len(a), int(draws))
    generator = state.generator if train else new_generator(int(state.seed) + VALIDATION_SEED)
    noise, generator = drawn(generator, lambda rng: torch.randn(shape, generator=rng, dtype=torch.float64))
    with torch.enable_grad():
        parameters = state.parameters.clone().requires_grad_()
        beta = torch.exp(parameters[0] + softplus(parameters[1]) * noise)  # (n, draws)
        (gradient,) = torch.autograd.grad(mixture_loss(a, beta).mean(), parameters)
    if train:
        state = _descend(state._replace(generator=generator), gradient, learning_rate)
    return MixKnobs(beta.detach().to(log_ratios.device)), state


def _descend(state: MixState, gradient: Tensor, learning_rate: float) -> MixState:
    """One AdamW step without weight decay, with the gradient's norm clipped at one."""
    moments = Moments([state.first_moment], [state.second_moment], int(state.step))
    (moved,), moments = adamw([state.parameters], clipped([gradient]), moments, learning_rate=learning_rate)
    return state._replace(
        parameters=moved,
        first_moment=moments.first[0],
        second_moment=moments.second[0],
        step=torch.tensor(moments.step),
    )


def mixture_loss(log_ratio: Tensor, beta: Tensor) -> Tensor:
    """(n,) −log of the mean over draws of σ(b·A); the logarithm is outside the average."""
    log_probabilities = logsigmoid(beta * log_ratio[:, None])
    return math.log(beta.shape[1]) - torch.logsumexp(log_probabilities, dim=1)


def loss(pairs: PairLogps, knobs: MixKnobs, **_: float) -> Tensor:
    a = pairs.log_ratio
    return mixture_loss(a, knobs.beta.to(a))
