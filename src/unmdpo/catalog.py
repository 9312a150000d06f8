"""What each objective is called, what it needs and which settings it takes: names without tensors.

Recipes are checked against this table before anything heavy is imported, so that a typo in a setting
costs a second and not an hour. The losses themselves stand in `OBJECTIVES`, which adds the formula
to each entry. Defaults are the paper's ("Policy training and baseline settings").
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from unmdpo.errors import UserError
from unmdpo.nearest import did_you_mean
from unmdpo.scores import StrengthMap

BETA, TAU = 0.05, 1.0
INITIAL = "initial"  # the model that all policies start from, where it stands among policies


class Setting(NamedTuple):
    """A number with a default and the half-open or open range it must lie in."""

    default: float
    low: float = 0.0
    high: float = math.inf
    low_allowed: bool = False
    whole: bool = False

    def check(self, name: str, value: Any) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            above = value >= self.low if self.low_allowed else value > self.low
            if above and value <= self.high and (not self.whole or value == int(value)):
                return value
        raise UserError(f"{name} should be {self.describe()}, not {value!r}")

    def describe(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        low = f"{'at least' if self.low_allowed else 'above'} {self.low:g}"
        return f"{kind} {low}" + ("" if math.isinf(self.high) else f" and at most {self.high:g}")


def positive(default: float) -> Setting:
    return Setting(default)


def nonnegative(default: float) -> Setting:
    return Setting(default, low_allowed=True)


def share(default: float) -> Setting:
    return Setting(default, high=1.0)


def count(default: int, low: int = 1) -> Setting:
    return Setting(default, low=low, low_allowed=True, whole=True)


def checked_levels(name: str, levels: Any) -> tuple[float, ...] | None:
    """The values of a strength map, or None for m(k) = k."""
    if levels is None:
        return None
    if not isinstance(levels, list | tuple) or not all(isinstance(level, int | float) for level in levels):
        raise UserError(f"{name} should be a list of numbers m(1), m(2), …, not {levels!r}")
    return StrengthMap(tuple(float(level) for level in levels)).levels


@dataclass(frozen=True)
class Spec:
    """One objective's needs: a reference policy, a prompt scale, the whole global batch first."""

    summary: str
    settings: Mapping[str, Setting] = field(default_factory=dict)
    reference: bool = True
    scale: bool = False
    batch: bool = False
    normalized: bool = False  # log-ratios are per token
    strength_map: bool = False  # takes `levels`, the values m(1), …, m(K)
    ordered: tuple[tuple[str, str], ...] = ()  # settings of which the first must not exceed the second

    def resolve(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with defaults filled in; unknown names and bad values are refused."""
        known = {*self.settings, *(["levels"] if self.strength_map else [])}
        for key in given:
            if key not in known:
                raise UserError(f"objective '{name}' has no setting '{key}'; {did_you_mean(key, known)}")
        resolved: dict[str, Any] = {
            key: setting.check(f"{name}.{key}", given.get(key, setting.default))
            for key, setting in self.settings.items()
        }
        if self.strength_map:
            resolved["levels"] = checked_levels(f"{name}.levels", given.get("levels"))
        for low, high in self.ordered:
            if resolved[low] > resolved[high]:
                raise UserError(
                    f"{name}.{low} ({resolved[low]}) must not exceed {name}.{high} ({resolved[high]})"
                )
        return resolved


MARGIN = {"beta": positive(BETA), "tau": nonnegative(TAU)}
BETA_LN = 18.225  # 0.05 · 364.5 (HelpSteer3)
NORMALIZED = {"beta": positive(BETA_LN), "tau": nonnegative(TAU)}

CATALOG: dict[str, Spec] = {
    "dpo": Spec("DPO", {"beta": positive(BETA)}),
    "fixed-margin": Spec("DPO with the margin τ·m(k), q ≡ 1", MARGIN, strength_map=True),
    "unm-ao": Spec("UNM-DPO, advantage-only", MARGIN, scale=True, strength_map=True),
    "unm-wr": Spec("UNM-DPO, whole-residual", MARGIN, scale=True, strength_map=True),
    "ulnm-wr": Spec(
        "ULNM-DPO-WR, length-normalized", NORMALIZED, scale=True, strength_map=True, normalized=True
    ),
    "ulnm-ao": Spec(
        "the AO placement, length-normalized", NORMALIZED, scale=True, strength_map=True, normalized=True
    ),
    "ln-dpo": Spec("DPO with length-normalized log-ratios", {"beta": positive(18.225)}, normalized=True),
    "odpo": Spec("DPO with an offset", {"beta": positive(BETA), "offset": nonnegative(0.75)}),
    "mmpo": Spec("soft targets by strength", {"beta": positive(BETA), "slope": positive(2.2)}),
    "simpo": Spec(
        "SimPO, reference-free", {"beta": positive(2.5), "gamma": nonnegative(1.375)}, reference=False
    ),
    "spo": Spec("SPO-basic, reference-free", {"alpha": positive(0.01)}, reference=False),
    "beta-dpo": Spec(
        "β-DPO: batch-adaptive β and selection",
        {
            "beta": positive(BETA),
            "alpha": nonnegative(0.2),
            "keep": share(0.8),
            "momentum": Setting(0.9, high=1.0, low_allowed=True),
            "floor": positive(1e-3),
        },
        batch=True,
    ),
    "gamma-po": Spec(
        "γ-PO: batch-adaptive margins",
        {
            "beta": positive(BETA),
            "gamma": positive(0.02),
            "regularization": positive(10.0),
            "step": positive(0.05),
            "iterations": count(20),
            "capacity": count(2048),
            "sample": count(256),
        },
        batch=True,
    ),
    "mixdpo": Spec(
        "LogNormal MixDPO: β integrated over a learned distribution",
        {
            "mean": positive(0.1),
            "spread": positive(0.6),
            "draws": count(16),
            "learning_rate": positive(1e-4),
        },
        batch=True,
    ),
    "ada-dpo": Spec(
        "Adaptive Preference Scaling: the loss-minimising scale of each pair",
        {
            "beta": positive(BETA),
            "rho": Setting(0.1, low=1e-6, high=math.log(2), low_allowed=True),
            "low": positive(0.5),
            "high": positive(2.0),
        },
        ordered=(("low", "high"),),
    ),
}
