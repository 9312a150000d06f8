"""Prompt scales: features, heads, bounded maps and every way of learning q, listed in `ESTIMATORS`."""

from unmdpo.catalog.estimators import ESTIMATORS
from unmdpo.scale.auto import AutoScale
from unmdpo.scale.base import FrozenScale, ScaleEstimator, make_estimator
from unmdpo.scale.beside import EMAScale, JointScale, ScaleBesidePolicy, SigmoidJointScale
from unmdpo.scale.crossfit import CrossFittedScale
from unmdpo.scale.data import Rows, Units
from unmdpo.scale.entropy import EntropyScale
from unmdpo.scale.pooled import ConstantScale, PooledScale
from unmdpo.scale.ridge import RidgeScale
from unmdpo.scale.shrunken import ShrunkenScale
from unmdpo.scale.store import load_scale, save_scale

__all__ = [
    "ESTIMATORS",
    "AutoScale",
    "ConstantScale",
    "CrossFittedScale",
    "EMAScale",
    "EntropyScale",
    "FrozenScale",
    "JointScale",
    "PooledScale",
    "RidgeScale",
    "Rows",
    "ScaleBesidePolicy",
    "ScaleEstimator",
    "ShrunkenScale",
    "SigmoidJointScale",
    "Units",
    "load_scale",
    "make_estimator",
    "save_scale",
]
