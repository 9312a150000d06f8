"""Entropy-CF: scales from the dispersion of annotators' votes ("How Entropy-CF learns q").

No pilots are used, so all rows count, even those without votes and those too long for a pilot to score (`valid` is
about evidence, and there is none here). Five heads regress each comparison's smoothed vote entropy, each outside one
fold; their pooled held-out predictions pass once through the centered map with comparison-row means.
"""

import math
import warnings
from functools import partial
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.scale import maps
from unmdpo.scale.base import FrozenScale, domain_count, fold_count, folds_of
from unmdpo.scale.data import VOTE_CATEGORIES, Rows, Units
from unmdpo.scale.diagnostics import correlation, diagnose
from unmdpo.scale.features import Standardizer, row_counts
from unmdpo.scale.fitting import Descent, HeadScale, margins, restore_folds, roughness
from unmdpo.scale.maps import Center, ScaleHead
from unmdpo.scale.settings import EntropySettings

SEED_STEP = 1009
GATE = ("correlation is positive", "scale varies", "scale is centered")


def entropy_targets(votes: Tensor) -> Tensor:
    """(n, 6) vote counts → (n,) Jeffreys-smoothed entropy in [0, log 2] (Eq. alternative-entropy-target). It is log 2
    without votes: nothing is known."""
    counts = votes.double()
    p = (counts + 0.5) / (counts.sum(1, keepdim=True) + VOTE_CATEGORIES / 2)
    return math.log(2) / math.log(VOTE_CATEGORIES) * -(p * p.log()).sum(1)


class EntropyScale(FrozenScale):
    name: ClassVar = "entropy"
    settings: EntropySettings

    curve_: list[float]  # mean loss of each epoch, over the heads
    heads_: list[HeadScale]
    center_: Center
    gate_: dict[str, bool]

    def fit(self, units: Units, rows: Rows) -> Self:
        folds = folds_of(units)
        if rows.votes is None or not rows.votes.any():
            raise ValueError("entropy scales need votes from individual annotators")
        rows, targets = _canonical_order(rows, entropy_targets(rows.votes))
        weights = row_counts(rows.unit, len(units))
        standardizer = Standardizer.fit(units.features, weights)
        raw = torch.full((len(units),), torch.nan)
        self.heads_, curves = [], []
        for fold in range(fold_count(units)):
            outside = folds != fold
            kept = outside[rows.unit]
            seed = self.settings.seed + SEED_STEP * (fold + 1)
            head, curve = self._fit_head(units, rows.unit[kept], targets[kept].float(), standardizer, seed)
            with torch.no_grad():
                raw[~outside] = head.raw(units.select(~outside))
            self.heads_.append(head)
            curves.append(curve)
        self.curve_ = torch.tensor(curves).mean(0).tolist()
        self.center_ = maps.center_of(raw, weights)
        self.q_ = maps.centered(raw, self.center_).exp()
        squashed = maps.squashed(raw, self.center_)
        self.diagnostics_ = diagnose(self.q_, rows, margins(rows, 1.0, None), squashed)
        self._diagnose(raw[rows.unit], targets, rows)
        if not self.passes:
            self._give_way()
        return self

    def _fit_head(
        self, units: Units, unit: Tensor, targets: Tensor, standardizer: Standardizer, seed: int
    ) -> tuple[HeadScale, list[float]]:
        """SmoothL1 regression in shuffled batches (the last may be smaller); also returns the mean loss per epoch."""
        features, domains = standardizer(units.features), units.domain_ids
        head = ScaleHead(features.shape[1], domain_count(units), seed=seed, width=self.settings.hidden)
        descent = Descent(head, self.settings.learning_rate, self.settings.weight_decay)
        rng = torch.Generator().manual_seed(seed)
        curve = []
        for _ in range(self.settings.epochs):
            total = 0.0
            order = torch.randperm(len(unit), generator=rng)
            for start in range(0, len(order), self.settings.batch):
                members = order[start : start + self.settings.batch]
                x, d = features[unit[members]], domains[unit[members]]
                loss = partial(self._loss, head, x, d, targets[members], rng)
                total += descent.step(loss) * len(members)
            curve.append(total / len(order))
        return HeadScale(standardizer, head, "centered"), curve

    def _loss(self, head: ScaleHead, x: Tensor, d: Tensor, y: Tensor, rng: torch.Generator) -> Tensor:
        predicted: Tensor = head(x, d)
        rough = roughness(lambda moved: head(moved, d), x, predicted, rng)
        return smooth_l1_loss(predicted, y) + self.settings.smoothness * rough

    def _diagnose(self, predicted: Tensor, targets: Tensor, rows: Rows) -> None:
        """The held-out correlation and the gate; passing the gate shows neither accuracy nor significance."""
        held_out = correlation(predicted, targets)
        log_q = self.q_.double().log()[rows.unit]
        self.diagnostics_["target_correlation"] = held_out
        passed = (held_out > 0, float(log_q.std(correction=0)) > 1e-6, abs(float(log_q.mean())) < 1e-4)
        self.gate_ = dict(zip(GATE, passed, strict=True))
        self.diagnostics_["gate"] = float(all(self.gate_.values()))

    @property
    def passes(self) -> bool:
        return all(self.gate_.values())

    def _give_way(self) -> None:
        """What does not pass the gate is no scale ("Out-of-fold predictive diagnostic")."""
        failed = ", ".join(name for name, passed in self.gate_.items() if not passed)
        problem = (
            f"the entropy scale does not pass its gate ({failed}: no); the correlation of its held-out predictions "
            f"with the votes' entropy is {self.diagnostics_['target_correlation']:.4f}"
        )
        if self.settings.otherwise == "refuse":
            raise UserError(f"{problem}; take another estimator, or settings: {{otherwise: one}} to go on with q ≡ 1")
        warnings.warn(f"{problem}; q ≡ 1 is taken instead", UnmdpoWarning, stacklevel=2)
        self.q_ = torch.ones_like(self.q_)

    def predict(self, units: Units) -> Tensor:
        if not self.passes:
            return torch.ones(len(units))
        with torch.no_grad():
            raw = torch.stack([head.raw(units) for head in self.heads_]).mean(0)
        return maps.centered(raw, self.center_).exp()

    def tensors(self) -> dict[str, Tensor]:
        named = {"q": self.q_, "center.raw": self.center_.raw, "center.bounded": self.center_.bounded}
        named |= {"gate": torch.tensor(list(self.gate_.values())), "curve": torch.tensor(self.curve_)}
        for fold, head in enumerate(self.heads_):
            named |= head.tensors(f"{fold}.")
        return named

    def restore(self, tensors: dict[str, Tensor]) -> Self:
        self.q_, self.curve_ = tensors["q"], tensors["curve"].tolist()
        self.center_ = Center.of_tensors(tensors)
        self.gate_ = dict(zip(GATE, tensors["gate"].tolist(), strict=True))
        self.heads_ = restore_folds(tensors, "centered")
        return self


def _canonical_order(rows: Rows, targets: Tensor) -> tuple[Rows, Tensor]:
    """Sorts rows by unit and target, so shuffled batches do not depend on the order of the file."""
    order = torch.argsort(targets, stable=True)
    order = order[torch.argsort(rows.unit[order], stable=True)]
    return rows.select(order), targets[order]
