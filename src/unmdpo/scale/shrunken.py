"""The pooled head, shrunken as far as prompts that it has not seen ask for.

Heads are fitted outside every fold with each weight λ of (log q)², and their log q, times each factor, is judged
inside it. The pair that loses least is used for one head fitted to all prompts; the factor is the measured reliability
of log q̂. A factor of 0 is q ≡ 1.
"""

from functools import partial
from typing import ClassVar, Self

import torch
from torch import Tensor

from unmdpo.catalog.estimators import PooledSettings, ShrunkenSettings
from unmdpo.scale.base import FrozenScale
from unmdpo.scale.check import out_of_fold_log_scales
from unmdpo.scale.data import Rows, Units
from unmdpo.scale.diagnostics import diagnose
from unmdpo.scale.fitting import losses_by, margins
from unmdpo.scale.pooled import PooledScale


class ShrunkenScale(FrozenScale):
    name: ClassVar = "shrunken"
    settings: ShrunkenSettings

    penalty_: float
    factor_: float
    base_: PooledScale

    def fit(self, units: Units, rows: Rows) -> Self:
        self.penalty_, self.factor_ = self._chosen(units, rows)
        self.base_ = self._pooled(self.penalty_).fit(units, rows)
        self.q_ = self.base_.q_**self.factor_
        margin = margins(rows, self.settings.tau, self.settings.levels)
        self.diagnostics_ = diagnose(self.q_, rows, margin, self.base_.scale_.squashed(units))
        self.diagnostics_ |= {"penalty": self.penalty_, "factor": self.factor_} if self.factor_ else {"constant": 1.0}
        return self

    @property
    def curve_(self) -> list[float]:
        """Loss before each update of the head."""
        return self.base_.curve_

    def _chosen(self, units: Units, rows: Rows) -> tuple[float, float]:
        """λ and the factor that lose least on unseen prompts; of equals, the first."""
        losses, found = losses_by(self.settings)(rows.valid_rows), {}
        for penalty in self.settings.penalties:
            log_q = out_of_fold_log_scales(partial(self._pooled, penalty), units, rows)
            for factor in self.settings.factors:
                found[penalty, factor] = float(losses(factor * log_q).mean())
        return min(found, key=found.__getitem__)

    def _pooled(self, penalty: float) -> PooledScale:
        shared = set(PooledSettings.model_fields) & set(ShrunkenSettings.model_fields)
        return PooledScale(**{name: getattr(self.settings, name) for name in shared}, penalty=penalty)

    def predict(self, units: Units) -> Tensor:
        return self.base_.predict(units) ** self.factor_

    def tensors(self) -> dict[str, Tensor]:
        chosen = torch.tensor([self.penalty_, self.factor_], dtype=torch.float64)
        return {"q": self.q_, "chosen": chosen} | {f"base.{name}": v for name, v in self.base_.tensors().items()}

    def restore(self, tensors: dict[str, Tensor]) -> Self:
        self.q_, (self.penalty_, self.factor_) = tensors["q"], tensors["chosen"].tolist()
        base = {name.removeprefix("base."): value for name, value in tensors.items() if name.startswith("base.")}
        self.base_ = self._pooled(self.penalty_).restore(base)
        return self
