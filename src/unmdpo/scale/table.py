"""Every estimator of the prompt scale, by its name in a recipe. Nothing here imports torch."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from unmdpo.core.code import Code
from unmdpo.core.settings import resolve
from unmdpo.scale.settings import (
    AutoSettings,
    CrossFittedSettings,
    EMASettings,
    EntropySettings,
    EstimatorSettings,
    GivenSettings,
    JointSettings,
    PooledSettings,
    RidgeSettings,
    SigmoidJointSettings,
)


@dataclass(frozen=True)
class Estimator:
    """A way of learning q: its settings, what it learns from, and when."""

    name: str
    summary: str
    make: Callable[..., Any]  # (**settings) → a `ScaleEstimator`
    settings: type[EstimatorSettings]
    _: KW_ONLY
    joint: bool = False  # trained together with the policy, not before it
    features: bool = True  # uses prompt features
    pilots: bool = True  # fitted to the pilots' out-of-fold values
    own_folds: bool = False  # cross-fits on its own folds instead of the pilots'
    follows: tuple[str, ...] = ()  # settings taken from the policy unless the recipe sets them

    def resolve(self, given: Mapping[str, Any]) -> EstimatorSettings:
        """The settings with defaults filled in; raises UserError for unknown names and bad values."""
        return resolve(self.settings, given, f"scale estimator '{self.name}'")


AUTO = "unmdpo.scale.auto"
ENTROPY = "unmdpo.scale.entropy"
FIXED = "unmdpo.scale.fixed"
JOINT = "unmdpo.scale.joint"
POOLED = "unmdpo.scale.pooled"
RIDGE = "unmdpo.scale.ridge"
POLICY = ("tau", "levels", "seed")
_ROWS = (
    Estimator(
        "constant", "q ≡ 1, the control", Code(f"{FIXED}:ConstantScale"), EstimatorSettings,
        features=False, pilots=False,
    ),
    Estimator(
        "given", "q from a file, centered", Code(f"{FIXED}:ExternalScale"), GivenSettings,
        features=False, pilots=False,
    ),
    Estimator("pooled", "one head fitted to all out-of-fold values", Code(f"{POOLED}:PooledScale"), PooledSettings),
    Estimator(
        "cross-fitted", "a head for each fold, fitted outside it", Code(f"{POOLED}:CrossFittedScale"),
        CrossFittedSettings,
    ),
    Estimator(
        "ridge", "linear in prompt features, shrunken as unseen prompts ask", Code(f"{RIDGE}:RidgeScale"),
        RidgeSettings,
    ),
    Estimator(
        "auto", "the best of these on prompts it has not seen, or q ≡ 1", Code(f"{AUTO}:AutoScale"), AutoSettings,
    ),
    Estimator(
        "entropy", "from the spread of annotators' votes, without pilots", Code(f"{ENTROPY}:EntropyScale"),
        EntropySettings, pilots=False, own_folds=True,
    ),
    Estimator(
        "joint", "a head trained with the policy, centered over all prompts", Code(f"{JOINT}:JointScale"),
        JointSettings, joint=True, follows=POLICY,
    ),
    Estimator(
        "ema", "a head trained with the policy, centered by a moving average", Code(f"{JOINT}:EMAScale"),
        EMASettings, joint=True, follows=(*POLICY, "placement"),
    ),
    Estimator(
        "sigmoid-joint", "the earlier joint head, whose map saturates", Code(f"{JOINT}:SigmoidJointScale"),
        SigmoidJointSettings, joint=True, follows=(*POLICY, "placement"),
    ),
)  # fmt: skip
ESTIMATORS: dict[str, Estimator] = {row.name: row for row in _ROWS}
