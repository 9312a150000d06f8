"""What `torchrun` runs in the tests with several ranks; the tests run the same code on one rank.

Usage:

    torchrun --nproc-per-node N -m tests.worlds.ranks FOLDER [CHECKPOINT]
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from tests.worlds.engine import SETTINGS, encoded
from tests.worlds.families import build
from tests.worlds.models import tiny
from unmdpo.engine.pairs.score import score
from unmdpo.engine.ranks import Ranks, join, local_device
from unmdpo.engine.settings import AdapterSettings, ComputeSettings, ModelSource, ObjectiveChoice
from unmdpo.engine.training.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.trainer import Trainer
from unmdpo.stages.shared.training import open_scorer

OBJECTIVES = {"unm-wr": 3, "beta-dpo": 3}  # number of updates
WAYS = {"plain": {}, "offloaded": {"offload_optimizer": True}, "lora": {}, "experts": {}}
RESUMED_TO = 6
MODELS: list[Path] = []  # the folder for models, once `main` knows it


def make_trainer(objective, way="plain"):
    join(local_device())
    pairs = encoded(invalid=(3, 11, 14))
    scorer, _ = open_scorer(saved(way), AdapterSettings(rank=4) if way == "lora" else None, seed=1)
    rng = torch.Generator().manual_seed(1)
    data = TrainingData(
        pairs=pairs,
        strength=torch.randint(1, 4, (20,), generator=rng).float(),
        reference=score(scorer, pairs, token_budget=64),
        scale=0.5 + 1.5 * torch.rand(20, generator=rng),
    )
    # a budget that gives three microbatches in some updates, so one rank has more to do than the other
    compute = ComputeSettings(token_budget=48, **WAYS[way])
    return Trainer(scorer, data, ObjectiveChoice(name=objective), SETTINGS, compute)


def saved(way):
    """A model in a folder. The mixture of experts has other names in its files than in memory."""
    folder = MODELS[0] / f"model, {way}"
    if Ranks.current().first and not folder.exists():
        model = build("qwen3_moe", "sdpa") if way == "experts" else tiny("llama, tied", "sdpa", torch.float32)
        model.save_pretrained(folder)
    Ranks.current().wait()
    return ModelSource(path=str(folder))


def whole(tensors):
    return {
        name: (v.full_tensor() if hasattr(v, "full_tensor") else v).detach().clone() for name, v in tensors.items()
    }


def train_and_write(trainer, updates, folder):
    lines = [trainer.step()]
    gradients = whole({name: p.grad for name, p in trainer.masters.named.items()})  # before weights round otherwise
    lines += [trainer.step() for _ in range(trainer.update, updates)]
    weights = whole(trainer.masters.named)
    if trainer.ranks.first:
        folder.mkdir(parents=True)
        save_file(weights, folder / "weights.safetensors")
        save_file(gradients, folder / "gradients.safetensors")
        (folder / "lines.json").write_text(json.dumps(lines))
    trainer.ranks.wait()
    return save_checkpoint(trainer, folder)


def main(folder, checkpoint=None):
    MODELS[:] = [folder]
    for objective, updates in OBJECTIVES.items():
        train_and_write(make_trainer(objective), updates, folder / objective)
    for way in [way for way in WAYS if way != "plain"]:
        train_and_write(make_trainer("unm-wr", way), 3, folder / way)
    offloaded = make_trainer("unm-wr", "offloaded")
    load_checkpoint(offloaded, checkpoints(folder / "offloaded")[-1])
    train_and_write(offloaded, RESUMED_TO, folder / "offloaded, resumed")
    if checkpoint is not None:
        resumed = make_trainer("beta-dpo")
        load_checkpoint(resumed, checkpoint)
        train_and_write(resumed, RESUMED_TO, folder / "resumed")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
    dist.barrier()
    dist.destroy_process_group()
