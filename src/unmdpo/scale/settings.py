"""The settings of every estimator of the prompt scale, with the paper's constants as defaults; no torch."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from unmdpo.core.margins import Placement
from unmdpo.core.places import Place
from unmdpo.core.settings import SEED, Count, Levels, Nonnegative, Positive, Seed, Strict

ENTROPY_SEED = 260827
BOUND = math.log(2) / 2  # b of the paper's centered map


class EstimatorSettings(Strict):
    unit: Literal["prompt", "pair"] = Field("prompt", description="what gets its own scale")


class HeadSettings(EstimatorSettings):
    """A small perceptron on prompt features."""

    hidden: Count = Field(16, description="width of the head")
    learning_rate: Positive = 1e-3
    weight_decay: Nonnegative = 0.0
    seed: Seed = SEED


class MarginSettings(EstimatorSettings):
    """What the margin residuals are that a scale is fitted to."""

    placement: Placement = Field("wr", description="placement of the margin in the fitting loss")
    tau: Nonnegative = 1.0
    levels: Levels = None


class ResidualSettings(MarginSettings, HeadSettings):
    """A head fitted to residuals: out-of-fold values, or those of the policy itself."""


class MapSettings(EstimatorSettings):
    """How far apart scales may be."""

    bound: Positive = Field(
        BOUND,
        description="b of the centered map: scales differ by at most e^(2b), which is 2 with the paper's log(2)/2",
    )


class PooledSettings(ResidualSettings, MapSettings):
    centered: bool = True
    penalty: Nonnegative = Field(0.01, description="λ_q, the weight of (log q)²")
    updates: int = Field(150, ge=0)

    @model_validator(mode="after")
    def _bound_is_of_the_centered_map(self) -> Self:
        if not self.centered and self.bound != BOUND:
            raise ValueError("bound is the centered map's; leave it out, or centered: false")
        return self


class CrossFittedSettings(PooledSettings):
    placement: Placement = "ao"


class LinearSettings(MarginSettings, MapSettings):
    """A linear map of prompt features, shrunken as held-out loss asks."""

    unit: Literal["prompt"] = "prompt"
    penalty: Nonnegative = Field(0.01, description="λ_q, the weight of (log q)²")


class RidgeSettings(LinearSettings):
    components: Count = Field(128, description="principal axes of the features")
    features: Literal["embedding", "sketch"] = Field(
        "embedding", description="the prompt's embedding and length, or the paper's sketch of the embedding"
    )


class AutoSettings(LinearSettings):
    """The best of several on unseen prompts, or q ≡ 1."""

    features: Literal["embedding"] = "embedding"


class GivenSettings(EstimatorSettings):
    """Scales from a file."""

    unit: Literal["prompt"] = "prompt"
    path: Place = Field(description="JSON lines or Parquet: prompt or prompt_hash, and q, for all training prompts")
    power: Nonnegative = Field(1.0, description="log q is multiplied by this")
    bound: Positive | None = Field(
        None, description="b of the centered map, log(2)/2 in the paper: scales differ by at most e^(2b)"
    )


class EntropySettings(HeadSettings):
    smoothness: Nonnegative = 0.01
    epochs: int = Field(30, ge=0)
    batch: Count = 512
    weight_decay: Nonnegative = 1e-3
    seed: Seed = ENTROPY_SEED
    otherwise: Literal["refuse", "one"] = Field(
        "refuse", description="if it does not predict held-out votes at all: end with an error, or take q ≡ 1"
    )


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
