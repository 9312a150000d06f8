"""The AO and WR comparison scores Γ and the strength map m(k), shared by every loss, fit and audit.

Torch is only imported for type checking: audits and recipes use the map without it.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from unmdpo.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Placement = Literal["ao", "wr"]


def advantage_only(gap: "Tensor", margin: "Tensor", scale: "Tensor") -> "Tensor":
    """Γ^AO = gap/q − τ·m(k) (Eq. evidence-only): the margin is in units of local noise."""
    return gap / scale - margin


def whole_residual(gap: "Tensor", margin: "Tensor", scale: "Tensor") -> "Tensor":
    """Γ^WR = (gap − τ·m(k))/q (Eq. whole-residual): the margin is in raw reward units."""
    return (gap - margin) / scale


SCORES = {"ao": advantage_only, "wr": whole_residual}


@dataclass(frozen=True)
class StrengthMap:
    """m: {1, …, K} → [0, ∞), nondecreasing; without `levels`, the paper's default m(k) = k."""

    levels: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.levels is None:
            return
        if not self.levels or not all(0 <= level < math.inf for level in self.levels):
            raise UserError(f"a strength map needs nonnegative, finite levels, not {list(self.levels)}")
        if any(a > b for a, b in zip(self.levels, self.levels[1:], strict=False)):
            raise UserError(f"a strength map must not decrease: {list(self.levels)}")

    def __call__(self, strength: int) -> float:
        if self.levels is None:
            return float(strength)
        if not 1 <= strength <= len(self.levels):
            raise UserError(f"strength {strength} is outside the map's {len(self.levels)} levels")
        return self.levels[strength - 1]

    def of(self, strength: "Tensor") -> "Tensor":
        """m(k) for a floating-point tensor of strengths (n,)."""
        if self.levels is None:
            return strength
        index = strength.long()
        if ((index != strength) | (index < 1) | (index > len(self.levels))).any():
            raise UserError(f"strengths should be whole numbers from 1 to {len(self.levels)}, like the map's levels")
        return strength.new_tensor(self.levels)[index - 1]
