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
from tests.worlds.models import tiny
from unmdpo.engine.pairs.score import score
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.ranks import join, local_device, shard
from unmdpo.engine.settings import ComputeSettings, ObjectiveChoice
from unmdpo.engine.training.checkpoint import load_checkpoint, save_checkpoint
from unmdpo.engine.training.data import TrainingData
from unmdpo.engine.training.trainer import Trainer

OBJECTIVES = {"unm-wr": 3, "beta-dpo": 3}  # number of updates
RESUMED_TO = 6


def make_trainer(objective):
    ranks = join(local_device())
    model = tiny("llama, tied", "sdpa", torch.float32)
    scorer = PairScorer(model)
    pairs = encoded(invalid=(3, 11, 14))
    if ranks.world > 1:
        shard(scorer, compute=torch.float32)
    rng = torch.Generator().manual_seed(1)
    data = TrainingData(
        pairs=pairs,
        strength=torch.randint(1, 4, (20,), generator=rng).float(),
        reference=score(scorer, pairs, token_budget=64),
        scale=0.5 + 1.5 * torch.rand(20, generator=rng),
    )
    # a budget that gives three microbatches in some updates, so one rank has more to do than the other
    return Trainer(scorer, data, ObjectiveChoice(name=objective), SETTINGS, ComputeSettings(token_budget=48))


def whole(tensors):
    return {
        name: (v.full_tensor() if hasattr(v, "full_tensor") else v).detach().clone() for name, v in tensors.items()
    }


def train_and_write(trainer, updates, folder):
    lines = [trainer.step() for _ in range(trainer.update, updates)]
    weights = whole(trainer.masters.named)
    gradients = whole({name: p.grad for name, p in trainer.masters.named.items()})
    if trainer.ranks.first:
        folder.mkdir(parents=True)
        save_file(weights, folder / "weights.safetensors")
        save_file(gradients, folder / "gradients.safetensors")
        (folder / "lines.json").write_text(json.dumps(lines))
    trainer.ranks.wait()
    return save_checkpoint(trainer, folder)


def main(folder, checkpoint=None):
    for objective, updates in OBJECTIVES.items():
        train_and_write(make_trainer(objective), updates, folder / objective)
    if checkpoint is not None:
        resumed = make_trainer("beta-dpo")
        load_checkpoint(resumed, checkpoint)
        train_and_write(resumed, RESUMED_TO, folder / "resumed")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
    dist.destroy_process_group()
