"""The best of several scales by their loss on unseen prompts, or q ≡ 1.

Candidates are fitted outside every fold and judged inside it; the winner must be better than q ≡ 1, as `check`
understands it. A prompt's own comparisons then move its scale as far as they help to foresee each other.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from unmdpo.scale import maps
from unmdpo.scale.base import FrozenScale
from unmdpo.scale.check import Gain, gain_of, out_of_fold_log_scales
from unmdpo.scale.data import Rows, Units
from unmdpo.scale.diagnostics import diagnose
from unmdpo.scale.features import DIMENSION, FACTS, narrow_features
from unmdpo.scale.fitting import losses_by, margins
from unmdpo.scale.maps import Center
from unmdpo.scale.prompt_offsets import fit_offsets
from unmdpo.scale.ridge import RidgeScale
from unmdpo.scale.settings import AutoSettings, LinearSettings

NONE, EMBEDDING, SKETCH = CANDIDATES = ("q ≡ 1", "ridge on the embedding", "ridge on its sketch")


class Candidate(NamedTuple):
    candidate: str
    gain: Gain


class AutoScale(FrozenScale):
    name: ClassVar = "auto"
    settings: AutoSettings

    chosen_: str
    base_: RidgeScale | None
    center_: Center  # of the raw scales without their own offsets, which new prompts do not have
    spread_: float  # σ of the offsets

    def fit(self, units: Units, rows: Rows) -> Self:
        best = self._best(units, rows)
        self.chosen_ = NONE if best is None else best.candidate
        self.base_ = None if best is None else self._ridge().fit(self._view(self.chosen_, units), rows)
        raw, valid = self._raw(units), rows.valid_rows
        bound = self.settings.bound
        own = fit_offsets(raw, valid, losses_by(self.settings), bound)
        center = maps.center_of(raw + own.offset, bound=bound)
        self.q_, self.spread_ = maps.centered(raw + own.offset, center).exp().float(), own.spread
        self.center_ = maps.center_of(raw, bound=bound)
        margin = margins(rows, self.settings.tau, self.settings.levels)
        self.diagnostics_ = diagnose(self.q_, rows, margin, maps.squashed(raw + own.offset, center))
        if own.spread:
            self.diagnostics_ |= {"own_gain": own.gain, "own_chance": own.chance}
        if best is None and not own.spread:
            self.diagnostics_["constant"] = 1.0
        return self

    def _best(self, units: Units, rows: Rows) -> Candidate | None:
        """The candidate with the largest gain, if its interval is above zero."""
        tried = []
        for candidate in (EMBEDDING, SKETCH):
            view = self._view(candidate, units)
            if candidate == EMBEDDING or view is not units:
                log_q = out_of_fold_log_scales(self._ridge, view, rows)
                tried.append(Candidate(candidate, gain_of(losses_by(self.settings), rows, log_q)))
        best = max(tried, key=lambda one: one.gain.value)
        return best if best.gain.low > 0 else None

    def _ridge(self) -> RidgeScale:
        return RidgeScale(**{name: getattr(self.settings, name) for name in LinearSettings.model_fields})

    def _view(self, candidate: str, units: Units) -> Units:
        """The features that a candidate is given: all, or the paper's sketch of the embedding."""
        if candidate == EMBEDDING or units.features.shape[1] <= DIMENSION + len(FACTS):
            return units
        return replace(units, features=narrow_features(units.features))

    def _raw(self, units: Units) -> Tensor:
        """(u,) log q of the chosen estimator before offsets; zeros if there is none."""
        if self.base_ is None:
            return torch.zeros(len(units), dtype=torch.float64)
        return self.base_.raw(self._view(self.chosen_, units))

    def predict(self, units: Units) -> Tensor:
        return maps.centered(self._raw(units), self.center_).exp().float()

    def tensors(self) -> dict[str, Tensor]:
        own = {
            "q": self.q_,
            "chosen": torch.tensor(CANDIDATES.index(self.chosen_)),
            "spread": torch.tensor(self.spread_, dtype=torch.float64),
            **self.center_.tensors(),
        }
        return own | {f"base.{name}": value for name, value in (self.base_.tensors() if self.base_ else {}).items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> Self:
        self.q_, self.chosen_ = tensors["q"], CANDIDATES[int(tensors["chosen"])]
        self.spread_ = float(tensors["spread"])
        self.center_ = Center.of_tensors(tensors)
        base = {name.removeprefix("base."): value for name, value in tensors.items() if name.startswith("base.")}
        self.base_ = self._ridge().restore(base) if base else None
        return self
