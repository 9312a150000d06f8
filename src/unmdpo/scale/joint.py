"""Scales learned alongside a policy, with one head step per policy update.

Within an update, the policy uses the detached head from before this update's head step:

    q = scale.scales(unit)                       # before the policy's passes over the batch
    ...                                          # the policy's forward and backward passes
    scale.step(unit, evidence, strength)         # with the batch's detached B = β·A

Both calls get the valid pairs of the whole global batch, so every rank takes the same step. `state` holds everything a
checkpoint needs.
"""

from abc import abstractmethod
from functools import partial
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from unmdpo.core.margins import SCORES
from unmdpo.scale import maps
from unmdpo.scale.base import OneHeadScale, domain_count
from unmdpo.scale.data import Rows, Units
from unmdpo.scale.diagnostics import diagnose
from unmdpo.scale.features import Standardizer, row_counts
from unmdpo.scale.fitting import Descent, HeadScale, MapName, margins, residual_loss, roughness
from unmdpo.scale.maps import SIGMOID_START, Activation, Center, ScaleHead
from unmdpo.scale.settings import EMASettings, JointSettings, ResidualSettings

EMA_SEED_OFFSET = 700
EMA_MOMENTUM = 0.9
MOMENTS = "moments."


class PolicyTimeScale(OneHeadScale):
    """A head, its optimizer, and the units of the training data."""

    start_at: ClassVar[float] = 0.0
    settings: ResidualSettings

    units_: Units
    features_: Tensor  # (u, d) standardized
    domains_: Tensor
    descent_: Descent

    def start(self, units: Units, row_unit: Tensor) -> Self:
        """Prepares for the first update; `row_unit` (n,) is the unit of every training comparison."""
        self.curve_ = []
        standardizer = self._standardizer(units, row_unit)
        self.units_ = units
        self.features_, self.domains_ = standardizer(units.features), units.domain_ids
        head = ScaleHead(
            self.features_.shape[1],
            domain_count(units),
            seed=self._head_seed,
            width=self.settings.hidden,
            activation=self.activation,
            start=self.start_at,
        )
        self.scale_ = HeadScale(standardizer, head, self.map, self._first_center())
        self.descent_ = Descent(head, self.settings.learning_rate, self.settings.weight_decay)
        self._refresh()
        return self

    @property
    def _head_seed(self) -> int:
        return self.settings.seed

    def _standardizer(self, units: Units, row_unit: Tensor) -> Standardizer:
        return Standardizer.fit(units.features)

    def _first_center(self) -> Center | None:
        return None

    def scales(self, unit: Tensor, train: bool = True) -> Tensor:
        """(n,) q for the next update on these pairs, detached, on the device of `unit`.

        In training, call it once per update with the whole batch; validation changes nothing.
        """
        if not len(unit):
            raise ValueError(f"{self.name}: a global batch without valid pairs has no scales")
        return self._scales(unit.cpu(), train).to(unit.device)

    @abstractmethod
    def _scales(self, unit: Tensor, train: bool) -> Tensor: ...

    def step(self, unit: Tensor, evidence: Tensor, strength: Tensor, weight: Tensor | None = None) -> float:
        """One head step on the batch's detached evidence; returns the head's loss before the step."""
        rows = Rows(unit.cpu(), evidence.detach().float().cpu(), strength.float().cpu(), weight=weight)
        loss = partial(self._batch_loss, rows, margins(rows, self.settings.tau, self.settings.levels))
        self.curve_.append(self.descent_.step(loss))
        self._refresh()
        return self.curve_[-1]

    def finish(self, rows: Rows) -> Self:
        """Describes the learned scale, using the final policy's evidence about the training rows."""
        margin, squashed = (margins(rows, self.settings.tau, self.settings.levels), self.scale_.squashed(self.units_))
        self.diagnostics_ = diagnose(self.q_, rows, margin, squashed)
        return self

    @abstractmethod
    def _batch_loss(self, rows: Rows, margin: Tensor) -> Tensor: ...

    @abstractmethod
    def _refresh(self) -> None:
        """Recomputes `q_` (and the frozen means) from the current head."""

    def state(self) -> dict[str, Tensor]:
        """Everything a resumed run needs after `start`: weights, means and optimizer moments."""
        moments = {f"{MOMENTS}{name}": value for name, value in self.descent_.state().items()}
        return self.tensors() | moments

    def load_state(self, tensors: dict[str, Tensor]) -> Self:
        """Continues exactly where `state` was taken; call `start` first."""
        self.restore(tensors)
        self.descent_ = Descent(self.scale_.head, self.settings.learning_rate, self.settings.weight_decay)
        named = {name.removeprefix(MOMENTS): v for name, v in tensors.items() if name.startswith(MOMENTS)}
        self.descent_.load_state(named)
        return self


class JointScale(PolicyTimeScale):
    """AO-fit with exact centering over all unique units ("Joint AO-fit heads")."""

    name: ClassVar = "joint"
    settings: JointSettings

    @property
    def map(self) -> MapName:
        return "centered"

    def _scales(self, unit: Tensor, train: bool) -> Tensor:
        return self.q_[unit]

    def _batch_loss(self, rows: Rows, margin: Tensor) -> Tensor:
        log_q = self._log_scales(self.scale_.head(self.features_, self.domains_))
        data = residual_loss(log_q, rows, self.settings.placement, margin)
        return data + self.settings.penalty * (log_q**2).mean()

    def _log_scales(self, raw: Tensor) -> Tensor:
        return maps.centered_here(raw)

    @torch.no_grad()
    def _refresh(self) -> None:
        raw = self.scale_.head(self.features_, self.domains_)
        self.scale_.center = maps.center_of(raw)
        self.q_ = self._log_scales(raw).exp()


class SigmoidJointScale(JointScale):
    """The earlier variant with q = 0.5 + 1.5·σ(h), which saturates ("Earlier joint scale saturation")."""

    name: ClassVar = "sigmoid-joint"
    start_at: ClassVar[float] = SIGMOID_START

    @property
    def map(self) -> MapName:
        return "saturating"

    def _log_scales(self, raw: Tensor) -> Tensor:
        return maps.saturating(raw)


class EMAScale(PolicyTimeScale):
    """Moving-average centering, Tanh head, placement as in the policy ("How EMA-joint learns q")."""

    name: ClassVar = "ema"
    activation: ClassVar[Activation] = "tanh"
    settings: EMASettings

    noise_: torch.Generator

    @property
    def map(self) -> MapName:
        return "moving"

    @property
    def _head_seed(self) -> int:
        return self.settings.seed + EMA_SEED_OFFSET

    def start(self, units: Units, row_unit: Tensor) -> Self:
        self.noise_ = torch.Generator().manual_seed(self._head_seed)
        return super().start(units, row_unit)

    def _standardizer(self, units: Units, row_unit: Tensor) -> Standardizer:
        """These statistics are weighted by comparison rows, not by unique units."""
        return Standardizer.fit(units.features, row_counts(row_unit, len(units)))

    def _first_center(self) -> Center:
        return Center(torch.zeros(()), torch.zeros(()))

    @torch.no_grad()
    def _scales(self, unit: Tensor, train: bool) -> Tensor:
        """In training, c first moves toward the batch's mean output, and the new c is used."""
        raw = self.scale_.head(self.features_[unit], self.domains_[unit])
        if train:
            moved = EMA_MOMENTUM * self._center + (1 - EMA_MOMENTUM) * raw.mean()
            self.scale_.center = Center(moved, torch.zeros(()))
        return maps.moving(raw, self._center).exp()

    def _batch_loss(self, rows: Rows, margin: Tensor) -> Tensor:
        features, domains = self.features_[rows.unit], self.domains_[rows.unit]

        def log_scales(features: Tensor) -> Tensor:
            return maps.moving(self.scale_.head(features, domains), self._center)

        log_q = log_scales(features)
        data = rows.weighted(-logsigmoid(SCORES[self.settings.placement](rows.evidence, margin, log_q.exp()))).mean()
        rough = roughness(log_scales, features, log_q, self.noise_)
        return data + self.settings.centering * log_q.mean() ** 2 + self.settings.smoothness * rough

    @property
    def _center(self) -> Tensor:
        if self.scale_.center is None:
            raise ValueError("call start() first")
        return self.scale_.center.raw

    @torch.no_grad()
    def _refresh(self) -> None:
        self.q_ = maps.moving(self.scale_.head(self.features_, self.domains_), self._center).exp()

    def state(self) -> dict[str, Tensor]:
        return super().state() | {"noise": self.noise_.get_state()}

    def load_state(self, tensors: dict[str, Tensor]) -> Self:
        self.noise_.set_state(tensors["noise"])
        return super().load_state(tensors)
