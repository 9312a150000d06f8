"""The main estimator (one head fitted to all pooled out-of-fold values) and the constant control."""

from typing import ClassVar, Self

import torch
from torch import Tensor

from unmdpo.catalog.estimators import PooledSettings
from unmdpo.scale import maps
from unmdpo.scale.base import FrozenScale, OneHeadScale, domain_count
from unmdpo.scale.data import Rows, Units
from unmdpo.scale.diagnostics import diagnose
from unmdpo.scale.features import Standardizer
from unmdpo.scale.fitting import Descent, HeadScale, MapName, margins, residual_loss
from unmdpo.scale.head import ScaleHead


class ConstantScale(FrozenScale):
    """q ≡ 1: the control that keeps margins and normalization but learns no scale."""

    name: ClassVar = "constant"

    def fit(self, units: Units, rows: Rows) -> Self:
        self.q_ = torch.ones(len(units))
        self.diagnostics_ = diagnose(self.q_, rows, margins(rows, 1.0, None), torch.zeros(len(units)))
        return self

    def predict(self, units: Units) -> Tensor:
        return torch.ones(len(units))

    def tensors(self) -> dict[str, Tensor]:
        return {"q": self.q_}

    def restore(self, tensors: dict[str, Tensor]) -> Self:
        self.q_ = tensors["q"]
        return self


class PooledScale(OneHeadScale, FrozenScale):
    """WR-fit (the paper's main formulation) or AO-fit; centered or not, with any λ_q.

    Length-normalized fitting runs the same code on length-normalized evidence.
    """

    name: ClassVar = "pooled"
    settings: PooledSettings

    @property
    def map(self) -> MapName:
        return "centered" if self.settings.centered else "uncentered"

    def fit(self, units: Units, rows: Rows) -> Self:
        seed, standardizer = self.settings.seed, Standardizer.fit(units.features)
        self.scale_, self.curve_ = self._fit_head(units, rows, standardizer, domain_count(units), seed)
        self.q_ = self.predict(units)
        margin = margins(rows, self.settings.tau, self.settings.levels)
        self.diagnostics_ = diagnose(self.q_, rows, margin, self.scale_.squashed(units))
        return self

    def _fit_head(
        self, units: Units, rows: Rows, standardizer: Standardizer, domains: int, seed: int
    ) -> tuple[HeadScale, list[float]]:
        """Fits one head with full-batch updates and recomputes its means at the end; also returns the loss curve."""
        s, features, domain_ids = self.settings, standardizer(units.features), units.domain_ids
        valid = rows.valid_rows
        valid = Rows(valid.unit, valid.evidence.float(), valid.strength)
        margin = margins(valid, s.tau, s.levels)
        head = ScaleHead(features.shape[1], domains, seed=seed, width=s.hidden)
        descent = Descent(head, s.learning_rate, s.weight_decay)

        def loss() -> Tensor:
            raw = head(features, domain_ids)
            log_q = maps.centered_here(raw, s.bound) if s.centered else maps.uncentered(raw)
            return residual_loss(log_q, valid, s.placement, margin) + s.penalty * (log_q**2).mean()

        curve = [descent.step(loss) for _ in range(s.updates)]
        with torch.no_grad():
            center = maps.center_of(head(features, domain_ids), bound=s.bound) if s.centered else None
        return HeadScale(standardizer, head, self.map, center), curve
