"""Checkpoints that appear whole or not at all, and go on exactly: nothing pickled."""

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmdpo.engine.train import Trainer
from unmdpo.errors import UserError
from unmdpo.objectives import AdaptiveObjective


def save_checkpoint(trainer: Trainer, folder: Path, *, keep: int = 2) -> Path:
    """Writes `folder/update-N` aside and renames it into place; only the last `keep` stay."""
    target = folder / f"update-{trainer.update:08d}"
    aside = folder / f".{target.name}.{os.getpid()}"
    aside.mkdir(parents=True)
    try:
        for part, tensors in _parts(trainer).items():
            save_file(tensors, aside / f"{part}.safetensors")
        described = {
            "update": trainer.update,
            "objective": trainer.objective.name,
            "torch": torch.__version__,
        }
        (aside / "checkpoint.json").write_text(json.dumps(described, indent=2) + "\n", "utf-8")
        if target.exists():
            shutil.rmtree(target)
        aside.rename(target)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise UserError(f"{target}: the checkpoint could not be written: {error.strerror}") from error
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return target


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    return sorted(path for path in folder.glob("update-*") if (path / "checkpoint.json").is_file())


def load_checkpoint(trainer: Trainer, path: Path) -> None:
    """Puts a trainer that was set up in the same way where the checkpoint was taken."""
    described = json.loads((path / "checkpoint.json").read_text("utf-8"))
    if described["objective"] != trainer.objective.name:
        raise UserError(
            f"{path}: a checkpoint of objective '{described['objective']}', not '{trainer.objective.name}'"
        )
    parts = {part: load_file(path / f"{part}.safetensors") for part in _parts(trainer)}
    with torch.no_grad():
        for name, parameter in trainer.masters.named.items():
            parameter.copy_(parts["model"][name])
        trainer.masters.publish()
    _restore_moments(trainer, parts["optimizer"])
    if isinstance(trainer.rule, AdaptiveObjective):
        trainer.adaptive_state = trainer.rule.restore(parts["objective"])
    if trainer.scale is not None:
        trainer.scale.load_state(parts["scale"])
    trainer.update = described["update"]


def _parts(trainer: Trainer) -> dict[str, dict[str, Tensor]]:
    parts = {
        "model": {name: p.detach().contiguous() for name, p in trainer.masters.named.items()},
        "optimizer": _moments(trainer),
    }
    if trainer.adaptive_state is not None:
        parts["objective"] = trainer.adaptive_state._asdict()
    if trainer.scale is not None:
        parts["scale"] = trainer.scale.state()
    return parts


def _moments(trainer: Trainer) -> dict[str, Tensor]:
    """AdamW's moments under the names of their parameters."""
    named = {}
    for name, parameter in trainer.masters.named.items():
        for key, value in trainer.optimizer.state.get(parameter, {}).items():
            named[f"{name}:{key}"] = value.detach().contiguous()
    return named or {"none": torch.zeros(())}


def _restore_moments(trainer: Trainer, tensors: dict[str, Tensor]) -> None:
    parameters = trainer.masters.named
    for name, value in tensors.items():
        owner, _, key = name.rpartition(":")
        if owner:
            target = value if key == "step" else value.to(parameters[owner].device)
            trainer.optimizer.state[parameters[owner]][key] = target
