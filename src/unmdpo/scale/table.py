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
    files: Callable[[Any], list[str]] | None = None  # settings → local files that it reads

    def resolve(self, given: Mapping[str, Any]) -> EstimatorSettings:
        """The settings with defaults filled in; raises UserError for unknown names and bad values."""
        return resolve(self.settings, given, f"scale estimator '{self.name}'")


def _code(place: str) -> Code:
    return Code(f"unmdpo.scale.{place}")


POLICY = ("tau", "levels", "seed")
_ROWS = (
    Estimator(
        "constant", "q ≡ 1, the control", _code("fixed:ConstantScale"), EstimatorSettings,
        features=False, pilots=False,
    ),
    Estimator(
        "given", "q from a file, centered", _code("fixed:ExternalScale"), GivenSettings, features=False, pilots=False,
        files=lambda settings: [settings.path],
    ),
    Estimator("pooled", "one head fitted to all out-of-fold values", _code("pooled:PooledScale"), PooledSettings),
    Estimator(
        "cross-fitted", "a head for each fold, fitted outside it", _code("pooled:CrossFittedScale"),
        CrossFittedSettings,
    ),
    Estimator(
        "ridge", "linear in prompt features, shrunken as unseen prompts ask", _code("ridge:RidgeScale"), RidgeSettings,
    ),
    Estimator(
        "auto", "the best of these on prompts it has not seen, or q ≡ 1", _code("auto:AutoScale"), AutoSettings,
    ),
    Estimator(
        "entropy", "from the spread of annotators' votes, without pilots", _code("entropy:EntropyScale"),
        EntropySettings, pilots=False, own_folds=True,
    ),
    Estimator(
        "joint", "a head trained with the policy, centered over all prompts", _code("joint:JointScale"),
        JointSettings, joint=True, follows=POLICY,
    ),
    Estimator(
        "ema", "a head trained with the policy, centered by a moving average", _code("joint:EMAScale"),
        EMASettings, joint=True, follows=(*POLICY, "placement"),
    ),
    Estimator(
        "sigmoid-joint", "the earlier joint head, whose map saturates", _code("joint:SigmoidJointScale"),
        SigmoidJointSettings, joint=True, follows=(*POLICY, "placement"),
    ),
)  # fmt: skip
ESTIMATORS: dict[str, Estimator] = {row.name: row for row in _ROWS}
