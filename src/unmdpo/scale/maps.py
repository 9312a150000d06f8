"""The bounded maps from a head's output to log q, and the head itself."""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from unmdpo.scale.settings import BOUND

LOG_2 = math.log(2)  # two values in [−b, b] differ by at most this, with the paper's b, so q ∈ [1/2, 2]
SIGMOID_START = -LOG_2  # σ(−log 2) = 1/3, and 0.5 + 1.5/3 = 1


class Center(NamedTuple):
    """The two means of the centered map and its bound; frozen after fitting and reused for new prompts."""

    raw: Tensor  # () ā
    bounded: Tensor  # () ū
    bound: float = BOUND

    def tensors(self) -> dict[str, Tensor]:
        """To be saved; the paper's bound goes without saying."""
        means = {"center.raw": self.raw.detach(), "center.bounded": self.bounded.detach()}
        own = torch.tensor(self.bound, dtype=torch.float64)
        return means if self.bound == BOUND else means | {"center.bound": own}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> "Center":
        bound = float(tensors["center.bound"]) if "center.bound" in tensors else BOUND
        return cls(tensors["center.raw"], tensors["center.bounded"], bound)


def center_of(raw: Tensor, weights: Tensor | None = None, bound: float = BOUND) -> Center:
    """Both means over a population (u,); differentiable. `weights` are the units' row counts."""
    mean = _mean(raw, weights)
    return Center(mean, _mean(_bounded(raw, mean, bound), weights), bound)


def centered(raw: Tensor, center: Center) -> Tensor:
    """log q = u − ū, u = b·tanh((a − ā)/b) (Eqs. bounded-raw-scale to scale-log-param)."""
    return _bounded(raw, center.raw, center.bound) - center.bounded


def centered_here(raw: Tensor, bound: float = BOUND) -> Tensor:
    """(u,) log q of a population centered over itself."""
    return centered(raw, center_of(raw, bound=bound))


def uncentered(raw: Tensor) -> Tensor:
    """log q = log 2·tanh(a/log 2): the centering ablation; bounded, but no mean is removed."""
    return LOG_2 * torch.tanh(raw / LOG_2)


def saturating(raw: Tensor) -> Tensor:
    """q = 0.5 + 1.5·σ(a): the earlier map whose scales drifted to the upper bound."""
    return torch.log(0.5 + 1.5 * torch.sigmoid(raw))


def moving(raw: Tensor, center: Tensor) -> Tensor:
    """log q = log 2·tanh(a − c), c a moving average of batch means (Eq. alternative-ema-q)."""
    return LOG_2 * torch.tanh(raw - center)


def squashed(raw: Tensor, center: Center) -> Tensor:
    """(u,) in [−1, 1]: how close each unit is to the centered map's bound."""
    return _bounded(raw, center.raw, center.bound) / center.bound


def slope(raw: Tensor, bound: float) -> Tensor:
    """(u,) du/da of the centered map over a population, with its mean ā held."""
    return 1 - torch.tanh((raw - raw.mean()) / bound) ** 2


def _bounded(raw: Tensor, mean: Tensor, bound: float) -> Tensor:
    return bound * torch.tanh((raw - mean) / bound)


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    return values.mean() if weights is None else (weights * values).sum() / weights.sum()


Activation = Literal["gelu", "tanh"]


class ScaleHead(nn.Module):
    """Linear → activation → Linear; the last layer and the domain terms start at zero."""

    def __init__(
        self,
        dimension: int,
        domains: int,
        *,
        seed: int,
        width: int = 16,
        activation: Activation = "gelu",
        start: float = 0.0,
    ) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(seed)  # separate, so the caller's randomness is not touched
        self.hidden = nn.utils.skip_init(nn.Linear, dimension, width)  # type: ignore[no-untyped-call]
        self.output = nn.utils.skip_init(nn.Linear, width, 1)  # type: ignore[no-untyped-call]
        bound = dimension**-0.5  # PyTorch's default for linear layers
        nn.init.uniform_(self.hidden.weight, -bound, bound, generator=rng)
        nn.init.uniform_(self.hidden.bias, -bound, bound, generator=rng)
        nn.init.zeros_(self.output.weight)
        nn.init.constant_(self.output.bias, start)
        self.domain = nn.Parameter(torch.zeros(domains))
        self.activation = nn.GELU() if activation == "gelu" else nn.Tanh()

    def forward(self, features: Tensor, domains: Tensor) -> Tensor:
        """(n, d) standardized features and (n,) domain ids → (n,); unknown domains add nothing."""
        scalar = self.output(self.activation(self.hidden(features))).squeeze(-1)
        known = (domains >= 0) & (domains < len(self.domain))
        terms = torch.cat([self.domain, self.domain.new_zeros(1)])
        combined: Tensor = scalar + terms[torch.where(known, domains, len(self.domain))]
        return combined
