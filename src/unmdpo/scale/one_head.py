"""What estimators with a single head share: prediction, and what is saved of them."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from unmdpo.scale.base import ScaleEstimator
from unmdpo.scale.data import Units
from unmdpo.scale.head import Activation
from unmdpo.scale.training import HeadScale, MapName


@dataclass(kw_only=True, eq=False)
class OneHeadScale(ScaleEstimator):
    activation: ClassVar[Activation] = "gelu"

    curve_: list[float] = field(init=False, repr=False)  # loss before each update
    scale_: HeadScale = field(init=False, repr=False)

    @property
    @abstractmethod
    def map(self) -> MapName: ...

    def predict(self, units: Units) -> Tensor:
        return self.scale_.log_scales(units).exp()

    def tensors(self) -> dict[str, Tensor]:
        return {"q": self.q_, "curve": torch.tensor(self.curve_), **self.scale_.tensors("scale.")}

    def restore(self, tensors: dict[str, Tensor]) -> Self:
        self.q_, self.curve_ = tensors["q"], tensors["curve"].tolist()
        self.scale_ = HeadScale.restore(tensors, self.map, self.activation, prefix="scale.")
        return self
