"""Five heads, each fitted outside one fold and used to predict that fold ("AO-fitted scales")."""

import math
import warnings
from typing import ClassVar, Self

import torch
from torch import Tensor

from unmdpo.errors import UnmdpoWarning
from unmdpo.scale.base import domain_count, fold_count, folds_of
from unmdpo.scale.data import Rows, Units
from unmdpo.scale.diagnostics import diagnose
from unmdpo.scale.features import Standardizer
from unmdpo.scale.fitting import HeadScale, margins, restore_folds
from unmdpo.scale.pooled import PooledScale

SEED_STEP = 1009


class CrossFittedScale(PooledScale):
    """Held-out predictions, pooled and calibrated by one additive log offset (Eq. new-scale-oof-calibration).

    Standardization uses all units; centering and regularization use only those outside the head's fold.
    """

    name: ClassVar = "cross-fitted"

    heads_: list[HeadScale]
    offset_: Tensor  # () c_OOF

    def fit(self, units: Units, rows: Rows) -> Self:
        folds, domains = fold_count(units), domain_count(units)
        standardizer = Standardizer.fit(units.features)
        held_out, squashed = torch.full((2, len(units)), torch.nan)
        self.heads_, curves = [], []
        for fold in range(folds):
            outside = folds_of(units) != fold
            scale, curve = self._fit_head(
                units.select(outside),
                rows.reindexed(outside),
                standardizer,
                domains,
                self.settings.seed + SEED_STEP * (fold + 1),
            )
            held_out[~outside] = scale.log_scales(units.select(~outside))
            squashed[~outside] = scale.squashed(units.select(~outside))
            self.heads_.append(scale)
            curves.append(curve)
        self.curve_ = torch.tensor(curves).mean(0).tolist()
        self.offset_ = held_out.mean()
        self.q_ = (held_out - self.offset_).exp()
        margin = margins(rows, self.settings.tau, self.settings.levels)
        self.diagnostics_ = diagnose(self.q_, rows, margin, squashed)
        self._check_bounds()
        return self

    def _check_bounds(self) -> None:
        """Checks the bounds, since no second bounding map follows the calibration."""
        most = math.exp(2 * self.settings.bound)
        outside = (self.q_.log().abs() > math.log(most) + 1e-6).sum().item()
        self.diagnostics_["outside_bounds"] = float(outside)
        if outside:
            warnings.warn(
                f"{outside} of {len(self.q_)} cross-fitted scales are outside [1/{most:.3g}, {most:.3g}] after "
                "calibration",
                UnmdpoWarning,
                stacklevel=3,
            )

    def predict(self, units: Units) -> Tensor:
        """The heads' mean log scale, calibrated. All heads take part, since none has seen these prompts."""
        logs = torch.stack([head.log_scales(units) for head in self.heads_])
        return (logs.mean(0) - self.offset_).exp()

    def tensors(self) -> dict[str, Tensor]:
        named = {"q": self.q_, "curve": torch.tensor(self.curve_), "offset": self.offset_}
        for fold, head in enumerate(self.heads_):
            named |= head.tensors(f"{fold}.")
        return named

    def restore(self, tensors: dict[str, Tensor]) -> Self:
        self.q_, self.curve_, self.offset_ = tensors["q"], tensors["curve"].tolist(), tensors["offset"]
        self.heads_ = restore_folds(tensors, self.map)
        return self
