"""The main estimator, one head fitted to all pooled out-of-fold values, and the constant control."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from unmdpo.scale import maps
from unmdpo.scale.base import FrozenScale, Levels, domain_count
from unmdpo.scale.data import Rows, Units
from unmdpo.scale.diagnostics import describe
from unmdpo.scale.features import Standardizer
from unmdpo.scale.head import ScaleHead
from unmdpo.scale.one_head import OneHeadScale
from unmdpo.scale.training import Descent, HeadScale, MapName, margins, residual_loss
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
class PooledScale(OneHeadScale, FrozenScale):
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

    @property
    def map(self) -> MapName:
        return "centered" if self.centered else "uncentered"

    def fit(self, units: Units, rows: Rows) -> Self:
        standardizer = Standardizer.fit(units.features)
        self.scale_, self.curve_ = self._fit_head(units, rows, standardizer, domain_count(units), self.seed)
        self.q_ = self.predict(units)
        margin = margins(rows, self.tau, self.levels)
        self.diagnostics_ = describe(self.q_, rows, margin, self.scale_.squashed(units))
        return self

    def _fit_head(
        self, units: Units, rows: Rows, standardizer: Standardizer, domains: int, seed: int
    ) -> tuple[HeadScale, list[float]]:
        """One head by full-batch updates, its means recomputed after the last, and the loss curve."""
        features, domain_ids = standardizer(units.features), units.domain_ids
        valid = rows.valid_rows
        valid = Rows(valid.unit, valid.evidence.float(), valid.strength)
        margin = margins(valid, self.tau, self.levels)
        head = ScaleHead(features.shape[1], domains, seed=seed)
        descent = Descent(head, self.learning_rate)

        def loss() -> Tensor:
            raw = head(features, domain_ids)
            log_q = maps.centered(raw, maps.center_of(raw)) if self.centered else maps.uncentered(raw)
            return residual_loss(log_q, valid, self.placement, margin) + self.penalty * (log_q**2).mean()

        curve = [descent.step(loss) for _ in range(self.updates)]
        with torch.no_grad():
            center = maps.center_of(head(features, domain_ids)) if self.centered else None
        return HeadScale(standardizer, head, self.map, center), curve
