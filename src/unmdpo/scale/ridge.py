"""A linear scale with as much shrinkage as unseen prompts ask for.

    a = θ·x,  log q = u − ū,  u = b·tanh(a/b)

x are the standardized features turned to their principal axes, so that shrinking θ shrinks what varies least the most.
The amount α is chosen by the loss on folds that θ was not fitted to, from a path that ends at θ = 0, which is q ≡ 1.
"""

from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from unmdpo.scale import maps
from unmdpo.scale.base import FrozenScale, domain_count, folds_of, with_enough_folds
from unmdpo.scale.data import Rows, Units
from unmdpo.scale.diagnostics import diagnose
from unmdpo.scale.features import Standardizer
from unmdpo.scale.fitting import Losses, losses_by, margins
from unmdpo.scale.maps import Center
from unmdpo.scale.settings import RidgeSettings

PATH = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03)  # α, for features of unit variance
STEPS, ENOUGH = 12, 1e-6  # Newton steps at most, and the improvement below which they end
FLAT = 1e-3  # least curvature of a row, where the loss is not convex


class RidgeScale(FrozenScale):
    """`shrinkage_` is the α that was chosen; infinite: q ≡ 1."""

    name: ClassVar = "ridge"
    settings: RidgeSettings

    standardizer_: Standardizer
    axes_: Tensor  # (d + domains, k) principal axes
    theta_: Tensor  # (k,)
    center_: Center
    domains_: int
    shrinkage_: float

    def fit(self, units: Units, rows: Rows) -> Self:
        self.standardizer_, self.domains_ = Standardizer.fit(units.features), domain_count(units)
        self.axes_ = principal_axes(self._columns(units), self.settings.components)
        x = self._columns(units) @ self.axes_
        valid = rows.valid_rows
        self.shrinkage_ = self._chosen(x, units, valid)
        self.theta_ = torch.zeros(x.shape[1], dtype=torch.float64)
        if self.shrinkage_ < float("inf"):
            self.theta_ = self.descend(x, valid, self.theta_, self.shrinkage_)
        self.center_ = maps.center_of(x @ self.theta_, bound=self.settings.bound)
        self.q_ = self.predict(units)
        margin = margins(rows, self.settings.tau, self.settings.levels)
        self.diagnostics_ = diagnose(self.q_, rows, margin, maps.squashed(x @ self.theta_, self.center_))
        self.diagnostics_ |= {"shrinkage": self.shrinkage_} if self.theta_.any() else {"constant": 1.0}
        return self

    def _columns(self, units: Units) -> Tensor:
        """(u, d + domains) standardized features, and a column for each domain if there are several."""
        features = self.standardizer_(units.features).double()
        if self.domains_ < 2:
            return features
        known = (units.domain_ids >= 0) & (units.domain_ids < self.domains_) & (units.domains is not None)
        member = one_hot(units.domain_ids.clamp(0, self.domains_ - 1), self.domains_).double() * known[:, None]
        return torch.cat([features, member - known[:, None] / self.domains_], dim=1)

    def _chosen(self, x: Tensor, units: Units, rows: Rows) -> float:
        """The α whose scales lose least on folds that they were not fitted to."""
        totals = torch.zeros(len(PATH) + 1, dtype=torch.float64)
        folds = folds_of(with_enough_folds(units))
        for fold in range(int(folds.max()) + 1):
            inside = folds == fold
            kept = inside[rows.unit]
            if kept.all() or not kept.any():
                continue
            seen, unseen = rows.select(~kept), rows.select(kept)
            losses, theta = losses_by(self.settings)(unseen), torch.zeros(x.shape[1], dtype=torch.float64)
            totals[0] += losses(torch.zeros(len(units), dtype=torch.float64)).sum()
            for place, alpha in enumerate(PATH, start=1):
                theta = self.descend(x, seen, theta, alpha, members=~inside)
                raw = x @ theta
                log_q = maps.centered(raw, maps.center_of(raw[inside], bound=self.settings.bound))
                totals[place] += losses(log_q).sum()
        return (float("inf"), *PATH)[int(totals.argmin())]

    def descend(self, x: Tensor, rows: Rows, theta: Tensor, alpha: float, members: Tensor | None = None) -> Tensor:
        """Damped Newton steps from `theta`; `members` (u,) are the units that the center is over, default all."""
        members = torch.ones(len(x), dtype=torch.bool) if members is None else members
        s, losses = self.settings, losses_by(self.settings)(rows.reindexed(members))
        problem = _Problem(x[members], losses, s.penalty, s.bound, alpha)
        value = problem.value(theta)
        for _ in range(STEPS):
            step = problem.newton(theta)
            rate = 1.0
            while (new := problem.value(theta - rate * step)) > value and rate > 1e-3:
                rate /= 2
            if new >= value - ENOUGH:
                break
            theta, value = theta - rate * step, new
        return theta

    def raw(self, units: Units) -> Tensor:
        """(u,) a, before it is bounded and centered."""
        return self._columns(units) @ self.axes_ @ self.theta_

    def predict(self, units: Units) -> Tensor:
        return maps.centered(self.raw(units), self.center_).exp().float()

    def tensors(self) -> dict[str, Tensor]:
        return {
            "q": self.q_,
            "mean": self.standardizer_.mean,
            "deviation": self.standardizer_.deviation,
            "axes": self.axes_.contiguous(),
            "theta": self.theta_,
            **self.center_.tensors(),
            "domains": torch.tensor(self.domains_),
            "shrinkage": torch.tensor(self.shrinkage_, dtype=torch.float64),
        }

    def restore(self, tensors: dict[str, Tensor]) -> Self:
        self.q_, self.axes_, self.theta_ = tensors["q"], tensors["axes"], tensors["theta"]
        self.standardizer_ = Standardizer(tensors["mean"], tensors["deviation"])
        self.center_ = Center.of_tensors(tensors)
        self.domains_, self.shrinkage_ = int(tensors["domains"]), float(tensors["shrinkage"])
        return self


class _Problem(NamedTuple):
    """mean ζ(−Γ) + λ_q·mean (log q)² + α/2·|θ|²."""

    x: Tensor  # (u, k)
    losses: Losses
    penalty: float
    bound: float
    alpha: float

    def value(self, theta: Tensor) -> float:
        log_q = self._log_scale(theta)
        data = self.losses(log_q).mean() + self.penalty * (log_q**2).mean()
        return float(data + self.alpha / 2 * (theta @ theta))

    def _log_scale(self, theta: Tensor) -> Tensor:
        return maps.centered_here(self.x @ theta, self.bound)

    def newton(self, theta: Tensor) -> Tensor:
        """(k,) the step: exact gradient, curvature of each row's loss, made convex, through the map."""
        log_q = self._log_scale(theta).requires_grad_()
        data = self.losses(log_q).mean() + self.penalty * (log_q**2).mean()
        (slope,) = torch.autograd.grad(data, log_q, create_graph=True)
        (curved,) = torch.autograd.grad(slope.sum(), log_q)
        with torch.no_grad():
            bend = maps.slope(self.x @ theta, self.bound)
            through = (slope - slope.mean()) * bend
            gradient = self.x.T @ (through - through.mean()) + self.alpha * theta
            weight = (curved * bend**2).clamp(min=FLAT / len(bend))
            hessian = self.x.T @ (self.x * weight[:, None]) + self.alpha * torch.eye(len(theta), dtype=torch.float64)
            step: Tensor = torch.linalg.solve(hessian, gradient)
        return step


def principal_axes(columns: Tensor, count: int) -> Tensor:
    """(d, k) the axes along which columns (u, d) vary most. Their signs are fixed: equal data give equal axes."""
    covariance = columns.T @ columns / len(columns)
    values, vectors = torch.linalg.eigh(covariance)
    kept = vectors[:, values.argsort(descending=True)[:count]]
    largest = kept.gather(0, kept.abs().argmax(dim=0, keepdim=True))
    axes: Tensor = kept * largest.sign()
    return axes
