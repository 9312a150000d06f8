"""How pilots and policies are trained, and the scales between them."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from unmdpo.data.identity import FOLD_SEED
from unmdpo.recipe.data import ModelRecipe
from unmdpo.recipe.fields import Count, Nonnegative, ObjectiveName, Positive, Share, Shares, Strict


class Budget(Strict):
    """How long to train: a number of updates, or of epochs."""

    updates: Count | None = None
    epochs: Count | None = None

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if self.updates is not None and self.epochs is not None:
            raise ValueError("give updates or epochs, not both")
        return self


class DefaultBudget(Budget):
    """Where nothing is said, the paper's 150 updates."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("updates") is None and values.get("epochs") is None:
            return values | {"updates": 150}
        return values


class AdapterRecipe(Strict):
    """Train a LoRA adapter instead of all weights."""

    rank: Count = 64
    alpha: Count | None = Field(None, description="2·rank if not given")
    dropout: Share = 0.0


class TrainingRecipe(DefaultBudget):
    batch: Count = Field(128, description="pairs in a global batch")
    learning_rate: Positive = 1e-6
    warmup: Annotated[int, Field(ge=0)] = 20
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    weight_decay: Nonnegative = 0.1
    betas: Shares = (0.9, 0.98)
    eps: Positive = 1e-5
    clip: Positive = 1.0
    adapter: AdapterRecipe | None = None


class TrainingOverrides(Budget):
    """What a single policy does differently."""

    learning_rate: Positive | None = None
    seed: int | None = None
    adapter: AdapterRecipe | None = None


class PilotsRecipe(DefaultBudget):
    folds: Annotated[int, Field(ge=2)] = 5
    fold_seed: int = FOLD_SEED
    objective: ObjectiveName = "fixed-margin"
    seed: int | None = Field(None, description="of their training; the recipe's if not given")
    learning_rate: Positive | None = Field(None, description="training's own if not given")
    adapter: AdapterRecipe | None = None
    model: ModelRecipe | None = Field(None, description="a cheaper model for pilots and the scale's features")


class ComputeRecipe(Strict):
    """How work is done; results do not depend on it beyond rounding, so no cache key holds it."""

    ranks: Count = Field(1, description="processes (GPUs) that share one model, sharded")
    rank_minutes: Positive = Field(
        30.0, description="a rank that lets the others wait longer is taken for lost"
    )
    token_budget: Count | None = Field(None, description="tokens of a microbatch; what suits the device")
    activation_checkpointing: bool | None = Field(None, description="as memory needs if not given")
    offload_optimizer: bool = False
    checkpoint_minutes: Positive = 15.0
    deterministic: bool = Field(
        False, description="on a GPU: only kernels that give the same bits again, where PyTorch has them"
    )


class ScaleRecipe(Strict):
    estimator: Literal["constant", "pooled", "cross-fitted", "entropy", "joint", "ema", "sigmoid-joint"]
    fit: Literal["wr", "ao"] | None = Field(None, description="placement of the margin; the estimator's own")
    unit: Literal["prompt", "pair"] = "prompt"
    length_normalized: bool = False
    domains: bool = Field(True, description="whether the head has a learned term for each domain")
    centered: bool | None = None
    penalty: Nonnegative | None = Field(None, description="λ_q, the weight of (log q)²; the estimator's own")
    run: str | None = Field(None, description="take the fitted scale of this name from another run")

    @property
    def settings(self) -> dict[str, Any]:
        """What `unmdpo.scale.make_estimator` takes."""
        return {"placement": self.fit, "unit": self.unit, "centered": self.centered, "penalty": self.penalty}


class PolicyRecipe(Strict):
    objective: ObjectiveName
    scale: str | None = None
    settings: dict[str, float | list[float]] = Field({})
    training: TrainingOverrides = TrainingOverrides()
