"""NumPy arrays where tensors are computed with."""

from typing import Any

import torch


def as_tensors(record: Any) -> None:
    """Turns the arrays among a frozen dataclass's fields into tensors, without a copy. For its `__post_init__`."""
    for name, value in vars(record).items():
        if not isinstance(value, torch.Tensor) and hasattr(value, "__array__"):
            object.__setattr__(record, name, torch.as_tensor(value))
