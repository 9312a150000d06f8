"""The best of several scales by their loss on unseen prompts, or q ≡ 1.

Candidates are fitted outside every fold and judged inside it, each with its log q shrunken toward 0 by the best of a
few factors. The winner must beat q ≡ 1 by more than one standard error. A prompt's own comparisons then move its scale
as far as they help to foresee each other.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from unmdpo.catalog.estimators import AutoSettings, RidgeSettings
from unmdpo.scale import maps
from unmdpo.scale.base import FrozenScale
from unmdpo.scale.check import Gain, gain_of, out_of_fold_log_scales
from unmdpo.scale.data import Rows, Units
from unmdpo.scale.diagnostics import diagnose
from unmdpo.scale.features import DIMENSION, narrow_features
from unmdpo.scale.fitting import margins
from unmdpo.scale.maps import Center
from unmdpo.scale.own import own_offsets, with_own
from unmdpo.scale.pooled import PooledScale
from unmdpo.scale.ridge import RidgeScale, losses_by

SHRUNKEN = (1.0, 0.5, 0.25)
NONE = ""  # q ≡ 1
CANDIDATES = (NONE, "ridge on the embedding", "ridge on the sketch", "pooled head")


class Tried(NamedTuple):
    candidate: str
    share: float  # that its log q is multiplied by
    gain: Gain


class AutoScale(FrozenScale):
    name: ClassVar = "auto"
    settings: AutoSettings

    chosen_: str
    share_: float
    base_: FrozenScale | None
    center_: Center  # of the raw scales with their own offsets
    spread_: float  # σ of the offsets

    def fit(self, units: Units, rows: Rows) -> Self:
        best = self._best(units, rows)
        self.chosen_, self.share_ = (best.candidate, best.share) if best is not None else (NONE, 0.0)
        self.base_ = None if best is None else self._make(self.chosen_).fit(self._view(self.chosen_, units), rows)
        raw, valid = self._raw(units), rows.valid_rows
        own = own_offsets(raw, valid, losses_by(self._ridge))
        log_q, self.center_ = with_own(raw, own)
        self.q_, self.spread_ = log_q.exp().float(), own.spread
        margin = margins(rows, self.settings.tau, self.settings.levels)
        self.diagnostics_ = diagnose(self.q_, rows, margin, maps.squashed(raw + own.offset, self.center_))
        self.diagnostics_ |= {"share": self.share_, "own_spread": own.spread}
        if best is None and not own.spread:
            self.diagnostics_["constant"] = 1.0
        return self

    def _best(self, units: Units, rows: Rows) -> Tried | None:
        """The candidate with the largest gain, if that is more than its standard error."""
        tried = []
        for candidate in CANDIDATES[1:]:
            log_q = out_of_fold_log_scales(lambda: self._make(candidate), self._view(candidate, units), rows)  # noqa: B023
            tried += [Tried(candidate, share, gain_of(self, rows, share * log_q)) for share in SHRUNKEN]
        best = max(tried, key=lambda one: one.gain.value)
        return best if best.gain.value > best.gain.error else None

    def _make(self, candidate: str) -> FrozenScale:
        shared = {name: getattr(self.settings, name) for name in ("placement", "tau", "levels", "penalty")}
        return PooledScale(**shared) if candidate == CANDIDATES[3] else RidgeScale(**shared)

    def _view(self, candidate: str, units: Units) -> Units:
        """The features that a candidate is given: all, or the paper's sketch of the embedding."""
        if candidate == CANDIDATES[1] or units.features.shape[1] <= DIMENSION:
            return units
        return replace(units, features=narrow_features(units.features))

    @property
    def _ridge(self) -> RidgeSettings:
        return RidgeSettings(**{name: getattr(self.settings, name) for name in ("placement", "tau", "levels")})

    def _raw(self, units: Units) -> Tensor:
        """(u,) shrunken log q of the chosen estimator, before offsets; zeros if there is none."""
        if self.base_ is None:
            return torch.zeros(len(units), dtype=torch.float64)
        return self.share_ * self.base_.predict(self._view(self.chosen_, units)).double().log()

    def predict(self, units: Units) -> Tensor:
        return maps.centered(self._raw(units), self.center_).exp().float()

    def tensors(self) -> dict[str, Tensor]:
        own = {
            "q": self.q_,
            "chosen": torch.tensor(CANDIDATES.index(self.chosen_)),
            "share": torch.tensor(self.share_, dtype=torch.float64),
            "spread": torch.tensor(self.spread_, dtype=torch.float64),
            "center.raw": self.center_.raw,
            "center.bounded": self.center_.bounded,
        }
        return own | {f"base.{name}": value for name, value in (self.base_.tensors() if self.base_ else {}).items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> Self:
        self.q_, self.chosen_ = tensors["q"], CANDIDATES[int(tensors["chosen"])]
        self.share_, self.spread_ = float(tensors["share"]), float(tensors["spread"])
        self.center_ = Center(tensors["center.raw"], tensors["center.bounded"])
        base = {name.removeprefix("base."): value for name, value in tensors.items() if name.startswith("base.")}
        self.base_ = self._make(self.chosen_).restore(base) if base else None
        return self
