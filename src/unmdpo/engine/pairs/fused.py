"""Where our kernels can run: on a GPU, if Triton is there, as it is with PyTorch for GPUs."""

from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


def has_kernels(values: Tensor) -> bool:
    """Whether there are kernels for such values."""
    return values.device.type == "cuda" and values.dtype != torch.float64 and _has_triton()


@lru_cache(maxsize=1)
def kernels() -> Any:
    from unmdpo.engine.pairs import kernels as found  # noqa: PLC0415 - only where there is Triton

    return found


@lru_cache(maxsize=1)
def _has_triton() -> bool:
    return find_spec("triton") is not None
