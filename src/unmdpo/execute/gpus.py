"""Which stages a GPU takes at once.

A model below a billion parameters leaves most of a GPU idle while it loads, compiles, writes or waits for its own
kernels. So two of its stages may train at a time, and one more may read, such as to answer or to judge: on one H200,
two policies of 135M train 1.14 times as fast as one after the other, and three do not fit. A larger model has the GPU
alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

SMALL_MODEL = 1e9  # parameters, below which stages share a GPU
TRAINING_AT_ONCE, READING_AT_ONCE = 2, 1


class Use(NamedTuple):
    """What a stage takes."""

    trains: bool
    ranks: int = 1  # each on a GPU of its own
    alone: bool = False


@dataclass
class Gpu:
    name: str
    is_shared: bool
    training: int = 0  # stages at work
    reading: int = 0
    is_taken: bool = False  # as a whole

    @property
    def load(self) -> int:
        return self.training + self.reading

    def takes(self, use: Use) -> bool:
        if self.is_taken:
            return False
        if use.alone or use.ranks > 1 or not self.is_shared:
            return self.load == 0
        return self.training < TRAINING_AT_ONCE if use.trains else self.reading < READING_AT_ONCE

    def change(self, use: Use, by: int) -> None:
        self.is_taken = by > 0 and (use.alone or use.ranks > 1 or not self.is_shared)
        if use.trains:
            self.training += by
        else:
            self.reading += by


class Gpus:
    """Those of this machine."""

    def __init__(self, names: Sequence[str], *, are_shared: bool) -> None:
        self._gpus = {name: Gpu(name, are_shared) for name in names}

    def __len__(self) -> int:
        return len(self._gpus)

    def fitting(self, use: Use) -> list[str]:
        """GPUs with room for a stage, the least busy first; none if there are not enough. A stage that wants more than
        there are gets all, and says so itself."""
        fitting = sorted((gpu for gpu in self._gpus.values() if gpu.takes(use)), key=lambda gpu: gpu.load)
        if len(fitting) < min(use.ranks, len(self._gpus)):
            return []
        return [gpu.name for gpu in fitting[: use.ranks]]

    def take(self, use: Use) -> tuple[str, ...]:
        names = tuple(sorted(self.fitting(use)))
        for name in names:
            self._gpus[name].change(use, 1)
        return names

    def release(self, names: Sequence[str], use: Use) -> None:
        for name in names:
            self._gpus[name].change(use, -1)
