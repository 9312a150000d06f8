"""Response length alone can spread fitted scales (Proposition 4.2, "length variability").

Two prompts have equal margins c, equal mean length, and residuals exactly at the margin once lengths are normalized.
Sequence-level fitting sees residuals c·δ_j·V instead and gives the prompt with the more variable lengths the larger
scale; length-normalized fitting sees zeros and gives q₁ = q₂ = 1.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

Floats = NDArray[np.float64]


class ScalePair(NamedTuple):
    first: float  # q₁, the prompt with the more variable lengths
    second: float

    @property
    def ratio(self) -> float:
        return self.first / self.second


@dataclass(frozen=True)
class LengthProblem:
    """Minimizes the WR scale-fitting loss over q₁q₂ = 1, q_j ∈ [1/bound, bound]."""

    margin: float  # c = τ·m(k)
    spreads: tuple[float, float]  # δ₁ > δ₂
    values: tuple[float, ...]  # of V
    probabilities: tuple[float, ...]
    penalty: float = 0.01  # λ_q
    bound: float = 2.0

    def __post_init__(self) -> None:
        first, second = self.spreads
        if not 0 < second < first < 1:
            raise ValueError(f"spreads must satisfy 0 < δ₂ < δ₁ < 1, not δ₁ = {first}, δ₂ = {second}")
        v, p = np.asarray(self.values), np.asarray(self.probabilities)
        if v.shape != p.shape or (p < 0).any() or not math.isclose(p.sum(), 1):
            raise ValueError("there must be one probability per value, all nonnegative, and they must sum to one")
        if abs(p @ v) > 1e-12 or (np.abs(v) > 1).any() or not (p[v != 0] > 0).any():
            raise ValueError("V must have mean zero, |V| ≤ 1, and not always be zero")
        if self.margin <= 0 or self.penalty < 0 or self.bound <= 1:
            raise ValueError("the margin must be positive, the penalty nonnegative, and the bound above one")

    def slope(self, log_scale: float) -> float:
        """d/ds of the sequence-level objective, from ∂ζ(−d/q)/∂log q = (d/q)·σ(−d/q)."""
        scaled = self._scaled_residuals(log_scale)
        first, second = (scaled * expit(-scaled)) @ np.asarray(self.probabilities)
        return float((first - second) / 2 + 2 * self.penalty * log_scale)

    def solve(self) -> ScalePair:
        """The constrained minimizer; the sequence-level objective is strictly convex in s."""
        edge = math.log(self.bound)
        s = edge if self.slope(edge) <= 0 else float(brentq(self.slope, 0.0, edge, xtol=1e-14))
        return ScalePair(math.exp(s), math.exp(-s))

    def _scaled_residuals(self, log_scale: float) -> Floats:
        """(2, |V|) residuals c·δ_j·V over q_j."""
        scales = np.exp([log_scale, -log_scale])[:, None]
        scaled: Floats = self.margin * np.outer(self.spreads, self.values) / scales
        return scaled
