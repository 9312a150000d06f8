"""The strength map m(k), once, for losses, scale fits and audits alike."""

from dataclasses import dataclass

from unmdpo.errors import UserError


@dataclass(frozen=True)
class StrengthMap:
    """m: {1, …, K} → [0, ∞), nondecreasing; without `levels` the paper's default m(k) = k."""

    levels: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.levels is None:
            return
        if not self.levels or self.levels[0] < 0:
            raise UserError(f"a strength map needs nonnegative levels, not {list(self.levels)}")
        if any(a > b for a, b in zip(self.levels, self.levels[1:], strict=False)):
            raise UserError(f"a strength map must not decrease: {list(self.levels)}")

    def __call__(self, strength: int) -> float:
        if self.levels is None:
            return float(strength)
        if not 1 <= strength <= len(self.levels):
            raise UserError(f"strength {strength} is outside the map's {len(self.levels)} levels")
        return self.levels[strength - 1]
