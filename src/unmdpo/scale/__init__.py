"""Every way of learning the prompt scale, by its name in a recipe."""

from unmdpo.scale.base import FrozenScale, ScaleEstimator
from unmdpo.scale.beside import EMAScale, JointScale, ScaleBesidePolicy, SigmoidJointScale
from unmdpo.scale.crossfit import CrossFittedScale
from unmdpo.scale.data import Rows, Units
from unmdpo.scale.entropy import EntropyScale
from unmdpo.scale.pooled import ConstantScale, PooledScale
from unmdpo.scale.store import load_scale, save_scale
from unmdpo.scale.table import ESTIMATORS, make_estimator

__all__ = [
    "ESTIMATORS",
    "ConstantScale",
    "CrossFittedScale",
    "EMAScale",
    "EntropyScale",
    "FrozenScale",
    "JointScale",
    "PooledScale",
    "Rows",
    "ScaleBesidePolicy",
    "ScaleEstimator",
    "SigmoidJointScale",
    "Units",
    "load_scale",
    "make_estimator",
    "save_scale",
]
