"""Names of estimators. Frozen ones are fitted before the policy, the others learn beside it."""

from collections.abc import Mapping
from typing import Any

from unmdpo.errors import UserError
from unmdpo.nearest import did_you_mean
from unmdpo.scale.base import ScaleEstimator
from unmdpo.scale.beside import EMAScale, JointScale, SigmoidJointScale
from unmdpo.scale.crossfit import CrossFittedScale
from unmdpo.scale.entropy import EntropyScale
from unmdpo.scale.pooled import ConstantScale, PooledScale

ESTIMATORS: dict[str, type[ScaleEstimator]] = {
    "constant": ConstantScale,
    "pooled": PooledScale,
    "cross-fitted": CrossFittedScale,
    "entropy": EntropyScale,
    "joint": JointScale,
    "ema": EMAScale,
    "sigmoid-joint": SigmoidJointScale,
}


def make_estimator(name: str, settings: Mapping[str, Any]) -> ScaleEstimator:
    """The estimator of this name; settings that are None keep its own defaults."""
    if name not in ESTIMATORS:
        raise UserError(f"unknown scale estimator '{name}'; {did_you_mean(name, ESTIMATORS)}")
    given = {key: value for key, value in settings.items() if value is not None}
    known = ESTIMATORS[name]().settings
    for key in given:
        if key not in known:
            raise UserError(f"scale estimator '{name}' has no setting '{key}'; {did_you_mean(key, known)}")
    return ESTIMATORS[name](**given)
