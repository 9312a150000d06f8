"""The manners that every estimator shares.

Settings stand in the constructor, `fit` returns the estimator itself, fitted names end in `_`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Self

from torch import Tensor

from unmdpo.catalog import checked_levels, count, nonnegative, positive
from unmdpo.errors import UserError
from unmdpo.scale.data import Rows, Units

UnitKind = Literal["prompt", "pair"]
Levels = tuple[float, ...] | None

# What the estimators' settings may be; each class says which it has and with which defaults.
SETTINGS = {
    **dict.fromkeys(("penalty", "tau", "smoothness", "weight_decay", "centering"), nonnegative(0.0)),
    **dict.fromkeys(("updates", "epochs"), count(0, low=0)),
    "batch": count(1),
    "learning_rate": positive(1e-3),
}
CHOICES = {"unit": ("prompt", "pair"), "placement": ("ao", "wr"), "centered": (True, False)}


@dataclass(kw_only=True, eq=False)
class ScaleEstimator(ABC):
    """Learns q of units. After fitting, `q_` holds the scale of every unit it was fitted to."""

    name: ClassVar[str]
    unit: UnitKind = "prompt"

    q_: Tensor = field(init=False, repr=False)  # (u,)
    diagnostics_: dict[str, float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, value in self.settings.items():
            if name in SETTINGS:
                SETTINGS[name].check(f"{self.name}.{name}", value)
            elif name in CHOICES and value not in CHOICES[name]:
                raise UserError(f"{self.name}.{name} should be one of {CHOICES[name]}, not {value!r}")
        if "levels" in self.settings:
            checked_levels(f"{self.name}.levels", self.settings["levels"])

    @property
    def settings(self) -> dict[str, Any]:
        return {setting.name: getattr(self, setting.name) for setting in fields(self) if setting.init}

    @abstractmethod
    def predict(self, units: Units) -> Tensor:
        """(u,) q of any units, seen or new, with everything frozen."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All that was fitted, for safetensors."""

    @abstractmethod
    def restore(self, tensors: dict[str, Tensor]) -> Self:
        """Back to the fitted state that `tensors` came from."""


@dataclass(kw_only=True, eq=False)
class FrozenScale(ScaleEstimator):
    """Fitted once, before the final policy, and frozen."""

    @abstractmethod
    def fit(self, units: Units, rows: Rows) -> Self: ...


def folds_of(units: Units) -> Tensor:
    """(u,) the units' folds, at least two of them."""
    if units.folds is None or not (units.folds != units.folds[0]).any():
        raise ValueError("cross-fitting needs the fold of every unit, and at least two folds")
    return units.folds


def fold_count(units: Units) -> int:
    return int(folds_of(units).max()) + 1


def domain_count(units: Units) -> int:
    return int(units.domain_ids.max()) + 1 if len(units) else 1
