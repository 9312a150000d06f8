"""Fitting a head: the scale-fitting losses, the optimizer, and a head together with its map."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from unmdpo.core.adamw import Moments, adamw, clipped
from unmdpo.core.margins import SCORES, Placement, StrengthMap
from unmdpo.scale import maps
from unmdpo.scale.data import Rows, Units
from unmdpo.scale.features import Standardizer
from unmdpo.scale.maps import Activation, Center, ScaleHead
from unmdpo.scale.settings import MarginSettings

NOISE = 0.01  # standard deviation of feature perturbations
Losses = Callable[[Tensor], Tensor]  # (u,) log q of units → (n,) losses of rows
LossesOf = Callable[[Rows], Losses]
MapName = Literal["centered", "uncentered", "saturating", "moving"]


@dataclass
class HeadScale:
    """A standardizer, a head and the frozen means of its map: everything needed to scale any prompt."""

    standardizer: Standardizer
    head: ScaleHead
    map: MapName
    center: Center | None = None

    def raw(self, units: Units) -> Tensor:
        """(u,) the head's output."""
        domains = units.domain_ids
        if units.domains is None and len(self.head.domain) > 1:
            domains = torch.full_like(domains, -1)  # fitted with domains but called without: unknown, not the first
        raw: Tensor = self.head(self.standardizer(units.features), domains)
        return raw

    def log_scale(self, raw: Tensor) -> Tensor:
        """(u,) log q of raw outputs, using the frozen means if the map has any."""
        if self.map == "uncentered":
            return maps.uncentered(raw)
        if self.map == "saturating":
            return maps.saturating(raw)
        if self.center is None:
            raise ValueError("this scale has not been fitted yet")
        if self.map == "moving":
            return maps.moving(raw, self.center.raw)
        return maps.centered(raw, self.center)

    @torch.no_grad()
    def log_scales(self, units: Units) -> Tensor:
        return self.log_scale(self.raw(units))

    @torch.no_grad()
    def squashed(self, units: Units) -> Tensor:
        """(u,) in [−1, 1]: where each unit is between the bounds of the map's squashing function."""
        raw = self.raw(units)
        if self.map == "saturating":
            return 2 * torch.sigmoid(raw) - 1
        if self.map == "centered" and self.center is not None:
            return maps.squashed(raw, self.center)
        return self.log_scale(raw) / maps.LOG_2

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        named = {"standardizer.mean": self.standardizer.mean, "standardizer.deviation": self.standardizer.deviation}
        named |= {f"head.{name}": value.detach() for name, value in self.head.state_dict().items()}
        if self.center is not None:
            named |= self.center.tensors()
        return {f"{prefix}{name}": value.clone().contiguous() for name, value in named.items()}

    @classmethod
    def restore(
        cls, tensors: dict[str, Tensor], map: MapName, activation: Activation = "gelu", *, prefix: str
    ) -> "HeadScale":
        own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        weights = {name.removeprefix("head."): v for name, v in own.items() if name.startswith("head.")}
        width, dimension = weights["hidden.weight"].shape
        head = ScaleHead(dimension, len(weights["domain"]), seed=0, width=width, activation=activation)
        head.load_state_dict(weights)
        standardizer = Standardizer(own["standardizer.mean"], own["standardizer.deviation"])
        center = Center.of_tensors(own) if "center.raw" in own else None
        return cls(standardizer, head, map, center)


def restore_folds(tensors: dict[str, Tensor], map: MapName) -> list[HeadScale]:
    """The heads saved under the prefixes `0.`, `1.`, …"""
    folds = sorted({int(name.split(".")[0]) for name in tensors if name[0].isdigit()})
    return [HeadScale.restore(tensors, map, prefix=f"{fold}.") for fold in folds]


def residual_loss(log_q: Tensor, rows: Rows, placement: Placement, margin: Tensor) -> Tensor:
    """Mean over valid rows of ζ(−Γ) with the unit's scale (Eqs. global-wr-scale-fit, new-scale-q-fit)."""
    score = SCORES[placement](rows.evidence, margin, torch.exp(log_q[rows.unit]))
    return rows.weighted(-logsigmoid(score)).mean()


def roughness(function: Callable[[Tensor], Tensor], features: Tensor, base: Tensor, rng: torch.Generator) -> Tensor:
    """S(g) = E[(g(v + ε) − g(v))²/0.01²], one draw ε ~ N(0, 0.01²·I), with `base` = g(v)."""
    noise = NOISE * torch.randn(features.shape, generator=rng)
    return ((function(features + noise) - base) ** 2).mean() / NOISE**2


def margins(rows: Rows, tau: float, levels: tuple[float, ...] | None) -> Tensor:
    return tau * StrengthMap(levels).of(rows.strength.float())


def losses_by(settings: MarginSettings) -> LossesOf:
    """The loss ζ(−Γ) of each row, in double precision, as a function of its unit's log q."""

    def of(rows: Rows) -> Losses:
        margin, evidence = margins(rows, settings.tau, settings.levels).double(), rows.evidence.double()
        score = SCORES[settings.placement]
        return lambda log_q: rows.weighted(-logsigmoid(score(evidence, margin, log_q[rows.unit].exp())))

    return of


@dataclass
class Descent:
    """Clipped AdamW steps on one head."""

    head: ScaleHead
    learning_rate: float
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        self.parameters = list(self.head.parameters())
        self.moments = Moments.zeros(self.parameters)

    def step(self, loss: Callable[[], Tensor]) -> float:
        """Takes one step and returns the loss before it."""
        value = loss()
        gradients = clipped(torch.autograd.grad(value, self.parameters))
        moved, self.moments = adamw(
            self.parameters, gradients, self.moments, learning_rate=self.learning_rate, weight_decay=self.weight_decay
        )
        with torch.no_grad():
            for parameter, new in zip(self.parameters, moved, strict=True):
                parameter.copy_(new)
        return float(value.detach())

    def state(self) -> dict[str, Tensor]:
        named = {"step": torch.tensor(self.moments.step)}
        for i, (first, second) in enumerate(zip(self.moments.first, self.moments.second, strict=True)):
            named |= {f"first.{i}": first.clone(), f"second.{i}": second.clone()}
        return named

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        count = range(len(self.parameters))
        first, second = ([tensors[f"{name}.{i}"].clone() for i in count] for name in ("first", "second"))
        self.moments = Moments(first, second, int(tensors["step"]))
