"""Scales that are not learned: q ≡ 1, and q from a file, made by another tool or in a world whose truth is known."""

from typing import ClassVar, Self

import torch
from torch import Tensor

from unmdpo.core.errors import UserError
from unmdpo.scale import maps
from unmdpo.scale.base import FrozenScale
from unmdpo.scale.data import Rows, Units
from unmdpo.scale.diagnostics import diagnose
from unmdpo.scale.fitting import margins
from unmdpo.scale.settings import GivenSettings


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


class ExternalScale(FrozenScale):
    """Units' only feature is their log q. It is centered and, with a bound b, mapped to b·tanh(log q/b) and centered
    again, as learned scales are."""

    name: ClassVar = "given"
    settings: GivenSettings

    def fit(self, units: Units, rows: Rows) -> Self:
        log_q, bound = self.settings.power * units.features[:, 0].double(), self.settings.bound
        log_q = log_q - log_q.mean() if bound is None else maps.centered_here(log_q, bound)
        self.q_ = log_q.exp().float()
        self.diagnostics_ = diagnose(self.q_, rows, margins(rows, 1.0, None), torch.zeros(len(units)))
        return self

    def predict(self, units: Units) -> Tensor:
        raise UserError("these scales were given for the training prompts, and say nothing about others")

    def tensors(self) -> dict[str, Tensor]:
        return {"q": self.q_}

    def restore(self, tensors: dict[str, Tensor]) -> Self:
        self.q_ = tensors["q"]
        return self
