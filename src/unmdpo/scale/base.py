"""The manners that every estimator shares.

Settings stand in the constructor, `fit` returns the estimator itself, fitted names end in `_`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Self

from torch import Tensor

from unmdpo.scale.data import Rows, Units

UnitKind = Literal["prompt", "pair"]
Levels = tuple[float, ...] | None


@dataclass(kw_only=True, eq=False)
class ScaleEstimator(ABC):
    """Learns q of units. After fitting, `q_` holds the scale of every unit it was fitted to."""

    name: ClassVar[str]
    unit: UnitKind = "prompt"

    q_: Tensor = field(init=False, repr=False)  # (u,)
    diagnostics_: dict[str, float] = field(init=False, repr=False)

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


def domain_count(units: Units) -> int:
    return int(units.domain_ids.max()) + 1 if len(units) else 1
