"""Checkpoints that are written atomically and resume exactly. Nothing is pickled.

A single process writes plain safetensors. Several ranks write a PyTorch distributed checkpoint in safetensors files,
each rank its own shards. Any number of ranks can read back either kind. Every file has a checksum: what was damaged is
never trained on.
"""

import json
import shutil
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.core.files import (
    apply_umask,
    file_names,
    put_in_place,
    read_sealed,
    read_small_json,
    remove,
    sha256,
    sync,
    temporary,
    with_seal,
    write_json,
)
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.training.optimizer import moments, restore, steps
from unmdpo.engine.training.trainer import Trainer
from unmdpo.objectives import AdaptiveObjective

DESCRIPTION = "checkpoint.json"


def save_checkpoint(trainer: Trainer, folder: Path, *, keep: int = 2, logs: Sequence[Path] = ()) -> Path:
    """Writes `folder/update-N` under a temporary name and renames it; only the last `keep` checkpoints are kept.
    `logs` are files that a resumed run continues: they are saved as they are now."""
    target, ranks = folder / f"update-{trainer.update:08d}", trainer.ranks
    aside = temporary(target)
    try:
        if ranks.first:
            remove(aside)  # left by a run that was killed while writing
            aside.mkdir(parents=True)
        ranks.wait()
        for part, tensors in _large_parts(trainer).items():
            _write(tensors, aside / part, trainer)
        ranks.wait()
        if ranks.first:
            for part, tensors in _small_parts(trainer).items():
                save_file(tensors, aside / f"{part}.safetensors")
            for log in logs:
                shutil.copyfile(log, aside / log.name)
            apply_umask(aside)
            write_json(aside / DESCRIPTION, with_seal(_describe(trainer) | {"files": _checksums(aside)}))
            sync(aside)
            put_in_place(aside, target)
            for old in checkpoints(folder)[:-keep]:
                (old / DESCRIPTION).unlink()  # first, so a half-deleted folder no longer counts as a checkpoint
                shutil.rmtree(old)
        ranks.wait()
    except OSError as error:
        remove(aside)
        raise UserError(f"{target}: the checkpoint could not be written: {error.strerror}") from error
    return target


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob("update-*") if (path / DESCRIPTION).is_file())


def newest_intact(folder: Path) -> Path | None:
    """The last checkpoint whose files are all as they were written. Later ones that are damaged are set aside."""
    for path in reversed(checkpoints(folder)):
        problem = _damage(path)
        if problem is None:
            return path
        aside = path.with_name(f"damaged-{path.name}")
        remove(aside)
        path.rename(aside)
        message = (
            f"the checkpoint {path} is not used: {problem}; training goes on from the one before, or the beginning"
        )
        warnings.warn(message, UnmdpoWarning, stacklevel=2)
    return None


def _damage(path: Path) -> str | None:
    described = read_sealed(path / DESCRIPTION)
    if described is None or "files" not in described:
        return f"{DESCRIPTION} is damaged, or from a version that kept no checksums"
    try:
        found = _checksums(path)
    except OSError as error:
        return f"{error.filename} cannot be read ({error.strerror})"
    wrong = sorted(name for name in {*found, *described["files"]} if found.get(name) != described["files"].get(name))
    return f"{wrong[0]} is not what was written" if wrong else None


def _checksums(folder: Path) -> dict[str, str]:
    """Of all files but the description. Hashing is as fast as the disk, and large files are hashed side by side."""
    names = [name for name in file_names(folder) if name != DESCRIPTION]
    with ThreadPoolExecutor() as pool:
        return dict(zip(names, pool.map(lambda name: sha256(folder / name), names), strict=True))


def load_checkpoint(trainer: Trainer, path: Path) -> None:
    """Restores the checkpoint's state into a trainer with the same setup."""
    described = read_small_json(path / DESCRIPTION)
    _same_run(described["run"], _run(trainer), path)
    with torch.no_grad():
        for part, tensors in _large_parts(trainer).items():
            _read(tensors, path / part)
            if part == "optimizer":
                restore(trainer.optimizer, trainer.masters.named, tensors, described["steps"])
        trainer.masters.publish()
    small = {part: load_file(path / f"{part}.safetensors") for part in _small_parts(trainer)}
    if isinstance(trainer.rule, AdaptiveObjective):
        trainer.adaptive_state = trainer.rule.restore(small["objective"])
    if trainer.scale is not None:
        trainer.scale.load_state(small["scale"])
    trainer.update, trainer.num_tokens = described["update"], described["num_tokens"]


def _describe(trainer: Trainer) -> dict[str, Any]:
    return {
        "update": trainer.update,
        "num_tokens": trainer.num_tokens,
        "steps": steps(trainer.optimizer, trainer.masters.named),
        "run": _run(trainer),
        "torch": torch.__version__,
    }


def _run(trainer: Trainer) -> dict[str, Any]:
    """What must not change between a checkpoint and the run that continues from it."""
    free = {"updates", "epochs"}  # training longer is allowed
    described = {
        "objective": trainer.objective.name,
        **dict(trainer.resolved),
        **trainer.settings.model_dump(exclude=free),
        "seed": trainer.seed,
        "pairs": len(trainer.data),
    }
    as_saved: dict[str, Any] = json.loads(json.dumps(described))  # as JSON reads it back
    return as_saved


def _same_run(saved: dict[str, Any], ours: dict[str, Any], path: Path) -> None:
    for name in sorted({*saved, *ours}):
        if saved.get(name) != ours.get(name):
            raise UserError(
                f"{path}: this is a checkpoint with {name} {saved.get(name)!r}, not {ours.get(name)!r}; "
                "continue with the same settings, or train in another folder"
            )


def _large_parts(trainer: Trainer) -> dict[str, dict[str, Tensor]]:
    """Tensors that may be sharded. Reading a checkpoint fills these same tensors in place."""
    named = trainer.masters.named
    weights = {name: parameter.detach() for name, parameter in named.items()}
    return {"model": weights, "optimizer": moments(trainer.optimizer, named)}


def _small_parts(trainer: Trainer) -> dict[str, dict[str, Tensor]]:
    """Tensors that every rank has in full."""
    parts = {}
    if trainer.adaptive_state is not None:
        parts["objective"] = trainer.adaptive_state._asdict()
    if trainer.scale is not None:
        parts["scale"] = trainer.scale.state()
    return parts


def _write(tensors: dict[str, Tensor], place: Path, trainer: Trainer) -> None:
    if trainer.ranks.world == 1:
        save_file({name: value.contiguous() for name, value in tensors.items()}, _plain(place))
        return
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter  # noqa: PLC0415 - slow
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415

    save(tensors, storage_writer=HuggingFaceStorageWriter(str(place), save_distributed=True))


def _read(tensors: dict[str, Tensor], place: Path) -> None:
    """Fills `tensors` from either kind of checkpoint."""
    plain = _plain(place).is_file()
    if plain and not any(hasattr(value, "full_tensor") for value in tensors.values()):
        for name, value in load_file(_plain(place)).items():
            tensors[name].copy_(value)
        return
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader  # noqa: PLC0415 - slow
    from torch.distributed.checkpoint.state_dict_loader import load  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # expected with one process
        alone = Ranks.current().world == 1  # perhaps inside a job with other ranks, which do not take part
        load(tensors, storage_reader=HuggingFaceStorageReader(str(place)), no_dist=alone)


def _plain(place: Path) -> Path:
    place.mkdir(exist_ok=True)
    return place / "whole.safetensors"
