"""The network behind a scale: a small perceptron on fixed features, plus one scalar per domain."""

from typing import Literal

import torch
from torch import Tensor, nn

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
