"""The conventions all estimators follow.

Settings go to the constructor, `fit` returns the estimator itself, and names of fitted attributes end in `_`. An
estimator's settings, traits and defaults are in its row of `unmdpo.scale.table`.
"""

import json
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmdpo.core.errors import UserError, did_you_mean
from unmdpo.core.files import read_small_json, write_text
from unmdpo.scale.data import Rows, Units
from unmdpo.scale.fitting import HeadScale, MapName
from unmdpo.scale.maps import Activation
from unmdpo.scale.settings import EstimatorSettings
from unmdpo.scale.table import ESTIMATORS

FOLDS, FEW = 5, 3
TENSORS, DESCRIPTION = "scale.safetensors", "scale.json"


class ScaleEstimator(ABC):
    """Learns the q of units. After fitting, `q_` holds the scale of every unit it was fitted to."""

    name: ClassVar[str]
    settings: EstimatorSettings

    q_: Tensor  # (u,)
    diagnostics_: dict[str, float]

    def __init__(self, **settings: Any) -> None:
        self.settings = ESTIMATORS[self.name].resolve(settings)

    @abstractmethod
    def predict(self, units: Units) -> Tensor:
        """(u,) q of any units, seen or new, with everything frozen."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Everything that was fitted, for safetensors."""

    @abstractmethod
    def restore(self, tensors: dict[str, Tensor]) -> Self:
        """Restores the fitted state that `tensors` came from."""


class FrozenScale(ScaleEstimator):
    """Fitted once, before the final policy, and frozen."""

    @abstractmethod
    def fit(self, units: Units, rows: Rows) -> Self: ...


class OneHeadScale(ScaleEstimator):
    """What estimators with a single head share: predicting, saving and restoring."""

    activation: ClassVar[Activation] = "gelu"

    curve_: list[float]  # loss before each update
    scale_: HeadScale

    @property
    @abstractmethod
    def map(self) -> MapName: ...

    def predict(self, units: Units) -> Tensor:
        return self.scale_.log_scales(units).exp()

    def tensors(self) -> dict[str, Tensor]:
        return {"q": self.q_, "curve": torch.tensor(self.curve_), **self.scale_.tensors("scale.")}

    def restore(self, tensors: dict[str, Tensor]) -> Self:
        self.q_, self.curve_ = tensors["q"], tensors["curve"].tolist()
        self.scale_ = HeadScale.restore(tensors, self.map, self.activation, prefix="scale.")
        return self


def make_estimator(name: str, settings: dict[str, Any]) -> ScaleEstimator:
    """The estimator with this name; settings that are not given keep their defaults."""
    if name not in ESTIMATORS:
        raise UserError(f"unknown scale estimator '{name}'; {did_you_mean(name, ESTIMATORS)}")
    made: ScaleEstimator = ESTIMATORS[name].make(**settings)
    return made


def folds_of(units: Units) -> Tensor:
    """(u,) the fold of each unit; there must be at least two folds."""
    if units.folds is None or not (units.folds != units.folds[0]).any():
        raise ValueError("cross-fitting needs the fold of every unit and at least two folds")
    return units.folds


def with_enough_folds(units: Units) -> Units:
    """Units with folds to choose by: their own, or new ones if they have fewer than three."""
    if units.folds is not None and int((torch.bincount(units.folds) > 0).sum()) >= FEW:
        return units
    return replace(units, folds=torch.arange(len(units)) % FOLDS)


def fold_count(units: Units) -> int:
    return int(folds_of(units).max()) + 1


def domain_count(units: Units) -> int:
    return int(units.domain_ids.max()) + 1 if len(units) else 1


def save_scale(estimator: ScaleEstimator, folder: Path) -> None:
    """Writes the description last, because a folder without it is not a scale."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DESCRIPTION).unlink(missing_ok=True)
    save_file(estimator.tensors(), folder / TENSORS)
    described = {
        "estimator": estimator.name,
        "settings": estimator.settings.model_dump(mode="json"),
        "diagnostics": getattr(estimator, "diagnostics_", {}),
    }
    write_text(folder / DESCRIPTION, json.dumps(described, indent=2) + "\n")


def load_scale(folder: Path) -> ScaleEstimator:
    try:
        described = read_small_json(folder / DESCRIPTION)
        estimator = make_estimator(described["estimator"], described["settings"])
        estimator.restore(load_file(folder / TENSORS))
        estimator.diagnostics_ = described["diagnostics"]
    except FileNotFoundError as error:
        raise UserError(f"{folder}: no fitted scale here ({error.filename} is missing)") from error
    except (UserError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{folder}: not a readable scale: {error}") from error
    return estimator
