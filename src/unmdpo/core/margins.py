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
    """m: {1, …, K} → [0, ∞), nondecreasing; without `levels`, the paper's default m(k) = k.

    A strength between two whole numbers has a margin between theirs, in proportion; m(0) is 0.
    """

    levels: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.levels is None:
            return
        if not self.levels or not all(0 <= level < math.inf for level in self.levels):
            raise UserError(f"a strength map needs nonnegative, finite levels, not {list(self.levels)}")
        if any(a > b for a, b in zip(self.levels, self.levels[1:], strict=False)):
            raise UserError(f"a strength map must not decrease: {list(self.levels)}")

    def __call__(self, strength: float) -> float:
        if self.levels is None:
            return float(strength)
        if not 0 < strength <= len(self.levels):
            raise UserError(self._outside(strength))
        low, known = math.floor(strength), (0.0, *self.levels)
        return known[low] + (strength - low) * (known[math.ceil(strength)] - known[low])

    def of(self, strength: "Tensor") -> "Tensor":
        """m(k) for a floating-point tensor of strengths (n,)."""
        if self.levels is None:
            return strength
        outside = (strength <= 0) | (strength > len(self.levels))
        if outside.any():
            raise UserError(self._outside(float(strength[outside][0])))
        low, known = strength.floor(), strength.new_tensor((0.0, *self.levels))
        below, above = known[low.long()], known[strength.ceil().long()]
        return below + (strength - low) * (above - below)

    def _outside(self, strength: float) -> str:
        count = len(self.levels or ())
        return f"strength {strength:g} is outside the map's {count} levels: give m(k) for every whole k up to it"
