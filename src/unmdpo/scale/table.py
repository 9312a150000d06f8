"""Names of estimators. Frozen ones are fitted before the policy, the others learn beside it."""

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
