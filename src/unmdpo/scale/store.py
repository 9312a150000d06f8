"""A fitted scale on disk: `scale.safetensors` and `scale.json`. Nothing is pickled, and every bit is kept."""

import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from unmdpo.errors import UserError
from unmdpo.files import write_text
from unmdpo.scale.base import ScaleEstimator, make_estimator

TENSORS, DESCRIPTION = "scale.safetensors", "scale.json"


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
        described = json.loads((folder / DESCRIPTION).read_text("utf-8"))
        estimator = make_estimator(described["estimator"], described["settings"])
        estimator.restore(load_file(folder / TENSORS))
        estimator.diagnostics_ = described["diagnostics"]
    except FileNotFoundError as error:
        raise UserError(f"{folder}: no fitted scale here ({error.filename} is missing)") from error
    except (UserError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{folder}: not a readable scale: {error}") from error
    return estimator
