"""The main estimator, one head fitted to all pooled out-of-fold values, and the constant control."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from unmdpo.scale.base import FrozenScale, Levels, domain_count
from unmdpo.scale.data import Rows, Units
from unmdpo.scale.diagnostics import describe
from unmdpo.scale.features import Standardizer
from unmdpo.scale.training import FullBatchFit, HeadScale, MapName, margins
from unmdpo.scores import Placement


@dataclass(kw_only=True, eq=False)
class ConstantScale(FrozenScale):
    """q ≡ 1: the control that keeps margins and normalization but learns no scale."""

    name: ClassVar = "constant"

    def fit(self, units: Units, rows: Rows) -> Self:
        self.q_ = torch.ones(len(units))
        self.diagnostics_ = describe(self.q_, rows, margins(rows, 1.0, None), torch.zeros(len(units)))
        return self

    def predict(self, units: Units) -> Tensor:
        return torch.ones(len(units))

    def tensors(self) -> dict[str, Tensor]:
        return {"q": self.q_}

    def restore(self, tensors: dict[str, Tensor]) -> Self:
        self.q_ = tensors["q"]
        return self


@dataclass(kw_only=True, eq=False)
class PooledScale(FrozenScale):
    """WR-fit (the paper's main formulation) or AO-fit; centered or not, any λ_q.

    Length-normalized fitting is the same code on length-normalized evidence.
    """

    name: ClassVar = "pooled"
    placement: Placement = "wr"
    centered: bool = True
    penalty: float = 0.01
    tau: float = 1.0
    levels: Levels = None
    updates: int = 150
    learning_rate: float = 1e-3
    seed: int = 42

    curve_: list[float] = field(init=False, repr=False)
    scale_: HeadScale = field(init=False, repr=False)

    @property
    def map(self) -> MapName:
        return "centered" if self.centered else "uncentered"

    def fit(self, units: Units, rows: Rows) -> Self:
        standardizer = Standardizer.fit(units.features)
        fitting = full_batch_fit(self)
        self.scale_, self.curve_ = fitting.fit(units, rows, standardizer, domain_count(units), self.seed)
        self.q_ = self.predict(units)
        margin = margins(rows, self.tau, self.levels)
        self.diagnostics_ = describe(self.q_, rows, margin, self.scale_.squashed(units))
        return self

    def predict(self, units: Units) -> Tensor:
        return self.scale_.log_scales(units).exp()

    def tensors(self) -> dict[str, Tensor]:
        return {"q": self.q_, "curve": torch.tensor(self.curve_), **self.scale_.tensors("scale.")}

    def restore(self, tensors: dict[str, Tensor]) -> Self:
        self.q_, self.curve_ = tensors["q"], tensors["curve"].tolist()
        self.scale_ = HeadScale.restore(tensors, self.map, prefix="scale.")
        return self


def full_batch_fit(settings: "PooledScale") -> FullBatchFit:
    return FullBatchFit(
        placement=settings.placement,
        centered=settings.centered,
        penalty=settings.penalty,
        tau=settings.tau,
        levels=settings.levels,
        updates=settings.updates,
        learning_rate=settings.learning_rate,
    )
