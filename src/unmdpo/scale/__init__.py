"""Prompt scales: features, heads, bounded maps and every way of learning q, listed in `ESTIMATORS`."""

from typing import TYPE_CHECKING

from unmdpo.core.lazy import lazily
from unmdpo.scale.table import ESTIMATORS

if TYPE_CHECKING:
    from unmdpo.scale.auto import AutoScale
    from unmdpo.scale.base import FrozenScale, ScaleEstimator, load_scale, make_estimator, save_scale
    from unmdpo.scale.data import Rows, Units
    from unmdpo.scale.entropy import EntropyScale
    from unmdpo.scale.fixed import ConstantScale, ExternalScale
    from unmdpo.scale.joint import EMAScale, JointScale, PolicyTimeScale, SigmoidJointScale
    from unmdpo.scale.pooled import CrossFittedScale, PooledScale
    from unmdpo.scale.ridge import RidgeScale

__all__ = [
    "ESTIMATORS",
    "AutoScale",
    "ConstantScale",
    "CrossFittedScale",
    "EMAScale",
    "EntropyScale",
    "ExternalScale",
    "FrozenScale",
    "JointScale",
    "PolicyTimeScale",
    "PooledScale",
    "RidgeScale",
    "Rows",
    "ScaleEstimator",
    "SigmoidJointScale",
    "Units",
    "load_scale",
    "make_estimator",
    "save_scale",
]
_HOMES = {
    "auto": ["AutoScale"],
    "base": ["FrozenScale", "ScaleEstimator", "load_scale", "make_estimator", "save_scale"],
    "data": ["Rows", "Units"],
    "entropy": ["EntropyScale"],
    "fixed": ["ConstantScale", "ExternalScale"],
    "joint": ["EMAScale", "JointScale", "PolicyTimeScale", "SigmoidJointScale"],
    "pooled": ["CrossFittedScale", "PooledScale"],
    "ridge": ["RidgeScale"],
}
__getattr__ = lazily(__name__, _HOMES)
