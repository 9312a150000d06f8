"""Which pairs each update sees, and its learning rate: pure functions of seed, epoch and update."""

import hashlib
import math
from collections.abc import Callable

import torch

from unmdpo.engine.settings import Schedule, updates_per_epoch

WARMUP_START = 0.1  # share of the learning rate at the first update


def update_seed(seed: int, update: int, rank: int) -> int:
    """The seed of an update's own randomness (dropout), so no random state needs saving."""
    digest = hashlib.sha256(f"update:{seed}:{update}:{rank}".encode("ascii")).digest()
    return int.from_bytes(digest[:4], "big")


def epoch_order(slots: int, seed: int, epoch: int) -> list[int]:
    """A permutation of all loader slots, valid or not, that depends only on (seed, epoch).

    Both are hashed into one seed, because PyTorch's CPU generator uses only 32 bits.
    """
    digest = hashlib.sha256(f"{seed}:{epoch}".encode("ascii")).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
    order: list[int] = torch.randperm(slots, generator=generator).tolist()
    return order


def batch_of(update: int, slots: int, batch: int, seed: int) -> list[int]:
    """The slots of a 0-based update."""
    per_epoch = updates_per_epoch(slots, batch)
    epoch, position = divmod(update, per_epoch)
    return epoch_order(slots, seed, epoch)[position * batch : (position + 1) * batch]


def learning_rate(update: int, *, peak: float, warmup: int, updates: int, schedule: Schedule) -> float:
    """lr·(0.1 + 0.9·min(t, w)/w) at 0-based update t, then constant, or decaying to zero at the end."""
    warm = min(update, warmup) / warmup if warmup else 1.0
    rate = peak * (WARMUP_START + (1 - WARMUP_START) * warm)
    left = max(1, updates - warmup)
    progress = min(1.0, max(0, update - warmup) / left)
    return rate * DECAYS[schedule](progress)


DECAYS: dict[Schedule, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
}
