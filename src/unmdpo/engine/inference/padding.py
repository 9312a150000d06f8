"""Proof that padding does not change what a model makes of a row.

Some models do not honor the mask (recurrent ones, or those that count positions from the first column). Their rows
then go with others of exactly their length, or alone.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from unmdpo.core.errors import UnmdpoWarning
from unmdpo.engine.pairs.padding import alike

BOUNDS = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.1}  # of a row's norm


def padding_is_harmless(model: PreTrainedModel, together: Tensor, alone: Tensor, what: str) -> bool:
    """Whether rows (n, d) computed in one padded batch are those computed one by one; says so if they are not."""
    difference = (together.float() - alone.float()).norm(dim=1) / alone.float().norm(dim=1).clamp(min=1e-6)
    difference = difference.nan_to_num(0.0)  # what is not finite is refused by whoever uses it
    if bool((difference <= BOUNDS.get(model.dtype, BOUNDS[torch.bfloat16])).all()):
        return True
    warnings.warn(
        f"{type(model).__name__} does not honor padding: {what} go in batches of one length each, which is slower",
        UnmdpoWarning,
        stacklevel=3,
    )
    return False


def shortest_and_longest(lengths: Sequence[int]) -> list[int]:
    """The rows to ask about: with the most padding, and without any."""
    order = sorted(range(len(lengths)), key=lambda place: lengths[place])
    return [order[0], order[len(order) // 2], order[-1]] if len(order) > 2 else order


def of_one_length(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Groups as in `alike`, but none needs padding."""
    groups = []
    for length in sorted(set(lengths), reverse=True):
        places = [place for place, own in enumerate(lengths) if own == length]
        groups += [[places[i] for i in members] for members in alike([length] * len(places), budget)]
    return groups
