"""Every objective by its name in a recipe.

A stateless objective is `loss(pairs, **settings)`. An adaptive one needs the log-ratios of the whole
global batch first: `init(seed)` makes its state, `adapt(log_ratios, state)` gives per-pair knobs and
the next state without gradient, and `loss(pairs, knobs)` is pure given the knobs. The same settings go
to all of its functions; unnamed ones are the paper's.

States and knobs are named tuples of tensors. `state._asdict()` can be saved as safetensors and is
restored exactly; a knob's first dimension is the pair, so `take` gives a microbatch its share.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import Tensor

from unmdpo.catalog import CATALOG, Spec
from unmdpo.objectives import beta_dpo, gamma_po, losses, mixdpo
from unmdpo.objectives.pairs import PairLogps, beta_ln_from_lengths


@dataclass(frozen=True)
class Objective:
    """A loss with its name, defaults and needs."""

    name: str
    formula: Callable[..., Tensor]

    @property
    def spec(self) -> Spec:
        return CATALOG[self.name]

    def loss(self, pairs: PairLogps, **settings: Any) -> Tensor:
        """One loss per pair, (n,)."""
        return self.formula(pairs, **self.spec.resolve(self.name, settings))


@dataclass(frozen=True)
class AdaptiveObjective:
    """A loss whose coefficients follow the global batch."""

    name: str
    module: ModuleType  # with init, adapt and loss
    state: type[Any]

    @property
    def spec(self) -> Spec:
        return CATALOG[self.name]

    def init(self, seed: int, **settings: Any) -> Any:
        return self.module.init(seed, **self.spec.resolve(self.name, settings))

    def adapt(self, log_ratios: Tensor, state: Any, train: bool = True, **settings: Any) -> tuple[Any, Any]:
        """(knobs, next state) from detached log-ratios of all valid pairs of the global batch."""
        if not len(log_ratios):
            raise ValueError(f"{self.name}: a global batch without valid pairs cannot be adapted to")
        if not log_ratios.isfinite().all():
            bad = (~log_ratios.isfinite()).nonzero().flatten().tolist()
            raise ValueError(f"{self.name}: log-ratios of pairs {bad[:8]} are not finite")
        knobs, state = self.module.adapt(log_ratios, state, train, **self.spec.resolve(self.name, settings))
        return knobs, state

    def loss(self, pairs: PairLogps, knobs: Any, **settings: Any) -> Tensor:
        """One loss per pair, (n,), given the knobs of these pairs."""
        if any(len(values) != len(pairs) for values in knobs):
            raise ValueError(f"{self.name}: knobs of {len(knobs[0])} pairs for a batch of {len(pairs)}")
        losses: Tensor = self.module.loss(pairs, knobs, **self.spec.resolve(self.name, settings))
        return losses

    def restore(self, tensors: dict[str, Tensor]) -> Any:
        """The state that `state._asdict()` was saved from."""
        return self.state(**{name: values.cpu() for name, values in tensors.items()})


def take(knobs: Any, pairs: Tensor) -> Any:
    """The knobs of some pairs of the batch: a microbatch's share."""
    return type(knobs)(*(values[pairs] for values in knobs))


OBJECTIVES: dict[str, Objective | AdaptiveObjective] = {
    objective.name: objective
    for objective in (
        Objective("dpo", losses.dpo),
        Objective("fixed-margin", losses.fixed_margin),
        Objective("unm-ao", losses.unm_ao),
        Objective("unm-wr", losses.unm_wr),
        Objective("ulnm-wr", losses.ulnm_wr),
        Objective("ulnm-ao", losses.ulnm_ao),
        Objective("ln-dpo", losses.ln_dpo),
        Objective("odpo", losses.odpo),
        Objective("mmpo", losses.mmpo),
        Objective("simpo", losses.simpo),
        Objective("spo", losses.spo),
        Objective("ada-dpo", losses.ada_dpo),
        AdaptiveObjective("beta-dpo", beta_dpo, beta_dpo.BetaState),
        AdaptiveObjective("gamma-po", gamma_po, gamma_po.GammaState),
        AdaptiveObjective("mixdpo", mixdpo, mixdpo.MixState),
    )
}

__all__ = ["OBJECTIVES", "AdaptiveObjective", "Objective", "PairLogps", "beta_ln_from_lengths", "take"]
