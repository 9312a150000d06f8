"""Rows of different lengths in one rectangle, and rows of like length together."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def alike(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Places of rows of like length, longest first; a group padded to its longest fits the budget."""
    groups: list[list[int]] = []
    room = 0
    for place in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if room == 0:
            groups.append([])
            room = max(1, budget // max(1, lengths[place]))  # a group's first is its longest
        groups[-1].append(place)
        room -= 1
    return [sorted(members) for members in groups]


def padded(
    rows: Sequence[Sequence[int] | NDArray[np.int32]], pad_token: int, side: Literal["left", "right"]
) -> tuple[Tensor, Tensor]:
    """(n, longest) tokens and mask."""
    longest = max(map(len, rows))
    tokens = torch.full((len(rows), longest), pad_token, dtype=torch.int64)
    mask = torch.zeros(len(rows), longest, dtype=torch.int64)
    for number, row in enumerate(rows):
        place = slice(longest - len(row), longest) if side == "left" else slice(0, len(row))
        tokens[number, place] = torch.as_tensor(row, dtype=torch.int64)
        mask[number, place] = 1
    return tokens, mask
