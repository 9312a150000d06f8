"""Random generators as tensors, so an objective's state can be saved and restored without pickle."""

import random
from collections.abc import Callable

import torch
from torch import Tensor

PYTHON_STATE_VERSION = 3  # of `random.Random.getstate()`, unchanged since Python 2.6


def new_generator(seed: int) -> Tensor:
    return torch.Generator().manual_seed(seed).get_state()


def drawn(state: Tensor, draw: Callable[[torch.Generator], Tensor]) -> tuple[Tensor, Tensor]:
    """What `draw` returns with a generator in `state`, and the generator's state afterwards."""
    generator = torch.Generator()
    generator.set_state(state)
    return draw(generator), generator.get_state()


def new_python_random(seed: int) -> Tensor:
    return python_state(random.Random(seed))


def python_random(state: Tensor) -> random.Random:
    rng = random.Random()
    rng.setstate((PYTHON_STATE_VERSION, tuple(state.tolist()), None))
    return rng


def python_state(rng: random.Random) -> Tensor:
    """The Mersenne twister's words. No half-used Gaussian needs saving, since only `sample` is called."""
    return torch.tensor(rng.getstate()[1], dtype=torch.int64)
