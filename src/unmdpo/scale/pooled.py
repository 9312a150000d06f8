"""Heads fitted to out-of-fold values: one for all (the paper's) or one for each fold."""

import math
import warnings
from dataclasses import replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from unmdpo.core.errors import UnmdpoWarning
from unmdpo.scale import maps
from unmdpo.scale.base import FrozenScale, OneHeadScale, domain_count, fold_count, folds_of
from unmdpo.scale.data import Rows, Units
from unmdpo.scale.diagnostics import diagnose
from unmdpo.scale.features import Standardizer
from unmdpo.scale.fitting import Descent, HeadScale, MapName, margins, residual_loss, restore_folds
from unmdpo.scale.maps import ScaleHead
from unmdpo.scale.settings import PooledSettings

SEED_STEP = 1009


class PooledScale(OneHeadScale, FrozenScale):
    """WR-fit (the paper's main formulation) or AO-fit; centered or not, with any λ_q.

    Length-normalized fitting runs the same code on length-normalized evidence.

    >>> units, unit = Units(torch.eye(4)), torch.arange(4).repeat_interleave(50)
    >>> noisy = torch.linspace(-4, 4, 50)  # of prompts 0 and 1; log-ratios of the others are all 0.5
    >>> evidence = torch.where(unit < 2, noisy.repeat(4), 0.5)
    >>> scale = PooledScale().fit(units, Rows(unit, evidence, torch.ones(200)))
    >>> bool(scale.q_[:2].min() > scale.q_[2:].max()), bool(scale.q_.max() <= 2 * scale.q_.min())
    (True, True)
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
        valid = replace(valid, evidence=valid.evidence.float())
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
