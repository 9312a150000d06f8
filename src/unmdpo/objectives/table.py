"""Every objective by its name in a recipe, with defaults from "Policy training and baseline settings".

A stateless objective is `loss(pairs, **settings)`. An adaptive one first needs the log-ratios of the whole global
batch: `init(seed)` creates its state, `adapt(log_ratios, state)` returns per-pair knobs and the next state without
gradient, and `loss(pairs, knobs)` is pure given the knobs. All of its functions get the same settings; settings that
are not given keep their defaults.

States and knobs are named tuples of tensors. `state._asdict()` can be saved as safetensors and is restored exactly. A
knob's first dimension is the pair, so `take` selects the knobs of a microbatch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from unmdpo.core.code import Code
from unmdpo.core.margins import Placement
from unmdpo.core.settings import Count, Levels, Nonnegative, Positive, Strict, resolve

if TYPE_CHECKING:
    from torch import Tensor

    from unmdpo.objectives.pairs import PairLogps

BETA, TAU = 0.05, 1.0
BETA_LN = 18.225  # 0.05 · 364.5, the median response length of HelpSteer3
INITIAL = "initial"  # how the model that all policies start from is named next to policies


class DPOSettings(Strict):
    beta: Positive = Field(BETA, description="β₀, the weight of the log-ratio")


class MarginSettings(DPOSettings):
    tau: Nonnegative = Field(TAU, description="τ, the margin's weight")
    levels: Levels = Field(None, description="m(1), …, m(K); default: m(k) = k")


class PerTokenSettings(Strict):
    beta: Positive = Field(BETA_LN, description="β_LN; in a recipe β₀ times the median length if not given")


class PerTokenMarginSettings(MarginSettings):
    beta: Positive = Field(BETA_LN, description="β_LN; in a recipe β₀ times the median length if not given")


class ODPOSettings(DPOSettings):
    offset: Nonnegative = Field(0.75, description="margin per strength level")


class MMPOSettings(DPOSettings):
    slope: Positive = Field(2.2, description="how fast the soft target grows with strength")


class FlipSettings(DPOSettings):
    flips: Annotated[float, Field(ge=0, lt=0.5, description="ε, the share of labels taken to be wrong")] = 0.1


class IPOSettings(Strict):
    beta: Positive = Field(0.1, description="log-ratios per token are drawn to 1/(2β)")


class RPOSettings(DPOSettings):
    eta: Positive = Field(1.0, description="η, the reward gap of one unit of strength")


class SimPOSettings(Strict):
    beta: Positive = 2.5
    gamma: Nonnegative = Field(1.375, description="one margin for all pairs")


class SPOSettings(Strict):
    alpha: Positive = 0.01


class BetaDPOSettings(DPOSettings):
    alpha: Nonnegative = Field(0.2, description="how strongly β follows the batch")
    keep: Annotated[float, Field(gt=0, le=1, description="share of the pairs that are kept")] = 0.8
    momentum: Annotated[float, Field(ge=0, le=1, description="momentum of the moving mean and deviation")] = 0.9
    floor: Positive = Field(1e-3, description="smallest β")


class GammaPOSettings(DPOSettings):
    gamma: Positive = Field(0.02, description="mean margin")
    regularization: Positive = 10.0
    step: Positive = 0.05
    iterations: Count = 20
    capacity: Count = Field(2048, description="log-ratios kept in the queue")
    sample: Count = Field(256, description="log-ratios that margins are fitted to")


class MixDPOSettings(Strict):
    mean: Positive = Field(0.1, description="initial exp(E[log β]), the median of β")
    spread: Positive = Field(0.6, description="initial standard deviation of log β")
    draws: Count = 16
    learning_rate: Positive = 1e-4


class AdaDPOSettings(DPOSettings):
    rho: Annotated[float, Field(ge=1e-6, le=math.log(2))] = 0.1
    low: Positive = Field(0.5, description="smallest scale of a pair")
    high: Positive = Field(2.0, description="largest scale of a pair")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) must not exceed high ({self.high})")
        return self


@dataclass(frozen=True)
class Objective:
    """A loss with its name, its settings and what it needs.

    >>> import torch
    >>> from unmdpo.objectives import PairLogps
    >>> logps = torch.tensor([-3.0, -5.0])
    >>> pairs = PairLogps(logps, logps - 1, logps, logps, strength=torch.tensor([1, 3]), ref_chosen=logps,
    ...                   ref_rejected=logps, scale=torch.tensor([1.0, 2.0]))
    >>> OBJECTIVES["unm-wr"].loss(pairs, beta=1.0, tau=1.0)  # −log σ((A − τm(k))/q), A = 1
    tensor([0.6931, 1.3133])
    >>> OBJECTIVES["unm-wr"].resolve({}).tau
    1.0
    """

    name: str
    summary: str
    formula: Callable[..., "Tensor"]  # (pairs, **settings) → (n,)
    settings: type[Strict]
    _: KW_ONLY
    reference: bool = True  # needs reference log-probabilities
    placement: Placement | None = None  # how the prompt scale enters its margin; None: it needs no scale
    normalized: bool = False  # log-ratios are per token
    own_beta: bool = False  # its β does not mean the recipe's β₀

    adaptive: ClassVar[bool] = False

    @property
    def scale(self) -> bool:
        """Whether it needs a prompt scale."""
        return self.placement is not None

    def resolve(self, given: Mapping[str, Any]) -> Strict:
        """The settings with defaults filled in; raises UserError for unknown names and bad values."""
        return resolve(self.settings, given, f"objective '{self.name}'")

    def loss(self, pairs: "PairLogps", **settings: Any) -> "Tensor":
        """One loss per pair, (n,)."""
        return self.formula(pairs, **dict(self.resolve(settings)))


@dataclass(frozen=True)
class AdaptiveObjective(Objective):
    """A loss with coefficients that adapt to the global batch."""

    _: KW_ONLY
    init_state: Callable[..., Any]  # (seed, **settings) → state
    update: Callable[..., tuple[Any, Any]]  # (log_ratios, state, train, **settings) → (knobs, state)
    state: Callable[..., Any]  # the state's type

    adaptive: ClassVar[bool] = True

    def init(self, seed: int, **settings: Any) -> Any:
        return self.init_state(seed, **dict(self.resolve(settings)))

    def adapt(self, log_ratios: "Tensor", state: Any, train: bool = True, **settings: Any) -> tuple[Any, Any]:
        """(knobs, next state) from detached log-ratios of all valid pairs of the global batch."""
        if not len(log_ratios):
            raise ValueError(f"{self.name}: cannot adapt to a global batch without valid pairs")
        if not log_ratios.isfinite().all():
            bad = (~log_ratios.isfinite()).nonzero().flatten().tolist()
            raise ValueError(f"{self.name}: log-ratios of pairs {bad[:8]} are not finite")
        return self.update(log_ratios, state, train, **dict(self.resolve(settings)))

    def loss(self, pairs: "PairLogps", knobs: Any = None, **settings: Any) -> "Tensor":
        """One loss per pair, (n,), given the knobs of these pairs."""
        if knobs is None or any(len(values) != len(pairs) for values in knobs):
            count = 0 if knobs is None else len(knobs[0])
            raise ValueError(f"{self.name}: got knobs for {count} pairs, but the batch has {len(pairs)}")
        return self.formula(pairs, knobs, **dict(self.resolve(settings)))

    def restore(self, tensors: Mapping[str, "Tensor"]) -> Any:
        """Rebuilds the state from the tensors of `state._asdict()`."""
        return self.state(**{name: values.cpu() for name, values in tensors.items()})


def take(knobs: Any, pairs: "Tensor") -> Any:
    """The knobs of some pairs of the batch, such as those of a microbatch."""
    return type(knobs)(*(values[pairs] for values in knobs))


LOSSES = "unmdpo.objectives.losses"
BETA_DPO, GAMMA_PO, MIXDPO = "unmdpo.objectives.beta_dpo", "unmdpo.objectives.gamma_po", "unmdpo.objectives.mixdpo"


def _loss(name: str) -> Code:
    return Code(f"{LOSSES}:{name}")


def _adaptive(
    name: str, summary: str, module: str, settings: type[Strict], state: str, *, own_beta: bool = False
) -> AdaptiveObjective:
    """An adaptive objective whose module defines `init`, `adapt`, `loss` and the state's type."""
    loss, init, adapt, kept = (Code(f"{module}:{part}") for part in ("loss", "init", "adapt", state))
    return AdaptiveObjective(
        name, summary, loss, settings, init_state=init, update=adapt, state=kept, own_beta=own_beta
    )


_ROWS = (
    Objective("dpo", "DPO", _loss("dpo"), DPOSettings),
    Objective("fixed-margin", "DPO with the margin τ·m(k), q ≡ 1", _loss("fixed_margin"), MarginSettings),
    Objective("unm-ao", "UNM-DPO, advantage-only", _loss("unm_ao"), MarginSettings, placement="ao"),
    Objective("unm-wr", "UNM-DPO, whole-residual", _loss("unm_wr"), MarginSettings, placement="wr"),
    Objective(
        "ulnm-wr", "ULNM-DPO-WR, length-normalized", _loss("ulnm_wr"), PerTokenMarginSettings,
        placement="wr", normalized=True,
    ),
    Objective(
        "ulnm-ao", "the AO placement, length-normalized", _loss("ulnm_ao"), PerTokenMarginSettings,
        placement="ao", normalized=True,
    ),
    Objective(
        "ln-dpo", "DPO with length-normalized log-ratios", _loss("ln_dpo"), PerTokenSettings, normalized=True
    ),
    Objective("odpo", "DPO with an offset", _loss("odpo"), ODPOSettings),
    Objective("mmpo", "soft targets by strength", _loss("mmpo"), MMPOSettings),
    Objective("cdpo", "DPO with smoothed labels", _loss("cdpo"), FlipSettings),
    Objective("robust-dpo", "DPO, unbiased under flipped labels", _loss("robust_dpo"), FlipSettings),
    Objective("ipo", "IPO: squared loss", _loss("ipo"), IPOSettings, normalized=True, own_beta=True),
    Objective("rpo-sq", "RPO: reward gaps like strengths, squared", _loss("rpo_sq"), RPOSettings),
    Objective("rpo-fwd-kl", "RPO with the forward KL divergence", _loss("rpo_fwd_kl"), RPOSettings),
    Objective("simpo", "SimPO, reference-free", _loss("simpo"), SimPOSettings, reference=False, own_beta=True),
    Objective("spo", "SPO-basic, reference-free", _loss("spo"), SPOSettings, reference=False, own_beta=True),
    _adaptive("beta-dpo", "β-DPO: batch-adaptive β and selection", BETA_DPO, BetaDPOSettings, "BetaState"),
    _adaptive("gamma-po", "γ-PO: batch-adaptive margins", GAMMA_PO, GammaPOSettings, "GammaState"),
    _adaptive("mixdpo", "MixDPO: β over a learned log-normal", MIXDPO, MixDPOSettings, "MixState", own_beta=True),
    Objective("ada-dpo", "the loss-minimizing scale of each pair (APS)", _loss("ada_dpo"), AdaDPOSettings),
)  # fmt: skip
OBJECTIVES: dict[str, Objective] = {row.name: row for row in _ROWS}
