"""Every way of learning the prompt scale, by its name in a recipe, with the paper's constants as defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from unmdpo.catalog.code import Code
from unmdpo.placement import Placement
from unmdpo.settings import SEED, Count, Levels, Nonnegative, Positive, Strict, resolve

if TYPE_CHECKING:
    from unmdpo.scale.base import ScaleEstimator

ENTROPY_SEED = 260827


class EstimatorSettings(Strict):
    unit: Literal["prompt", "pair"] = Field("prompt", description="what has a scale of its own")


class HeadSettings(EstimatorSettings):
    """A small perceptron on prompt features."""

    hidden: Count = Field(16, description="width of the head")
    learning_rate: Positive = 1e-3
    weight_decay: Nonnegative = 0.0
    seed: int = SEED


class ResidualSettings(HeadSettings):
    """A head fitted to residuals: out-of-fold values, or the policy's own."""

    placement: Placement = Field("wr", description="of the margin in the fitting loss")
    tau: Nonnegative = 1.0
    levels: Levels = None


class PooledSettings(ResidualSettings):
    centered: bool = True
    penalty: Nonnegative = Field(0.01, description="λ_q, the weight of (log q)²")
    updates: int = Field(150, ge=0)


class CrossFittedSettings(PooledSettings):
    placement: Placement = "ao"


class EntropySettings(HeadSettings):
    smoothness: Nonnegative = 0.01
    epochs: int = Field(30, ge=0)
    batch: Count = 512
    weight_decay: Nonnegative = 1e-3
    seed: int = ENTROPY_SEED


class JointSettings(ResidualSettings):
    placement: Placement = "ao"
    penalty: Nonnegative = Field(0.01, description="λ_q, the weight of (log q)²")


class SigmoidJointSettings(JointSettings):
    placement: Placement = "wr"


class EMASettings(ResidualSettings):
    placement: Placement = "ao"
    weight_decay: Nonnegative = 1e-3
    smoothness: Nonnegative = 0.01
    centering: Nonnegative = Field(1.0, description="weight of the squared batch mean of log q")


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """A way of learning q: its settings, what it learns from, and when."""

    name: str
    summary: str
    make: Callable[..., "ScaleEstimator"]  # (**settings)
    settings: type[EstimatorSettings] = EstimatorSettings
    beside: bool = False  # learns inside a policy's training, rather than before it
    features: bool = True  # looks at prompt features
    pilots: bool = True  # is fitted to the pilots' out-of-fold values
    own_folds: bool = False  # cross-fits on folds that are not the pilots'
    follows: tuple[str, ...] = ()  # settings that come from the policy unless the recipe gives them

    def resolve(self, given: Mapping[str, Any]) -> EstimatorSettings:
        """The settings with defaults filled in; unknown names and bad values are refused."""
        return resolve(self.settings, given, f"scale estimator '{self.name}'")


POLICY = ("tau", "levels", "seed")

ESTIMATORS: dict[str, Estimator] = {
    estimator.name: estimator
    for estimator in (
        Estimator(
            name="constant",
            summary="q ≡ 1, the control",
            make=Code("unmdpo.scale.pooled:ConstantScale"),
            features=False,
            pilots=False,
        ),
        Estimator(
            name="pooled",
            summary="one head fitted to all out-of-fold values, the paper's main one",
            make=Code("unmdpo.scale.pooled:PooledScale"),
            settings=PooledSettings,
        ),
        Estimator(
            name="cross-fitted",
            summary="a head for each fold, fitted outside it",
            make=Code("unmdpo.scale.crossfit:CrossFittedScale"),
            settings=CrossFittedSettings,
        ),
        Estimator(
            name="entropy",
            summary="from the spread of annotators' votes, without pilots",
            make=Code("unmdpo.scale.entropy:EntropyScale"),
            settings=EntropySettings,
            pilots=False,
            own_folds=True,
        ),
        Estimator(
            name="joint",
            summary="a head that learns beside the policy, centered over all prompts",
            make=Code("unmdpo.scale.beside:JointScale"),
            settings=JointSettings,
            beside=True,
            follows=POLICY,
        ),
        Estimator(
            name="ema",
            summary="a head that learns beside the policy, centered by a moving average",
            make=Code("unmdpo.scale.beside:EMAScale"),
            settings=EMASettings,
            beside=True,
            follows=(*POLICY, "placement"),
        ),
        Estimator(
            name="sigmoid-joint",
            summary="the earlier joint head, whose map saturates",
            make=Code("unmdpo.scale.beside:SigmoidJointScale"),
            settings=SigmoidJointSettings,
            beside=True,
            follows=POLICY,
        ),
    )
}
