"""Many pairs in one fixed token budget, each prompt computed once for both of its responses.

A pair is laid out as prompt, chosen, rejected. Both responses attend to the prompt and to themselves,
not to each other, and both continue the prompt's positions, so every token sees exactly what it would
see in a sequence of its own. Fixed shapes keep compiled kernels; the rest of the budget is padding
that attends to itself alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmdpo.engine.encode import EncodedPair

PROMPT, CHOSEN, REJECTED = 0, 1, 2
PADDING = -1
BLOCK = 128  # FlexAttention's mask is made of blocks of this many tokens


def first_fit(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Bins of positions whose lengths fit the budget: longest first, each into the first bin with room."""
    bins: list[list[int]] = []
    room: list[int] = []
    for item in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if lengths[item] > budget:
            raise ValueError(f"a pair of {lengths[item]} tokens does not fit the budget of {budget}")
        place = next((b for b, left in enumerate(room) if left >= lengths[item]), None)
        if place is None:
            bins.append([])
            room.append(budget)
            place = len(bins) - 1
        bins[place].append(item)
        room[place] -= lengths[item]
    return [sorted(members) for members in bins]


def padded_length(tokens: int, budget: int, fixed: bool) -> int:
    """The length a bin of `tokens` is padded to: quarters of the budget, so that few shapes occur, where
    shapes should be `fixed` because kernels are compiled for each of them.

    The last bin of a batch is seldom full; padding it to the whole budget would waste a tenth of the work.
    """
    step = -(-budget // (4 * BLOCK)) * BLOCK if fixed else 1
    return -(-tokens // step) * step


def visibility(
    pair: Tensor, part: Tensor, position: Tensor, window: int | None
) -> Callable[[Tensor, Tensor], Tensor]:
    """May a query token attend to a key token? Elementwise over token indices; with `window`, not to
    keys that many positions back."""

    def sees(query: Tensor, key: Tensor) -> Tensor:
        same = (pair[query] == pair[key]) & ((part[key] == PROMPT) | (part[key] == part[query]))
        seen = (key <= query) & torch.where(pair[query] == PADDING, query == key, same)
        return seen if window is None else seen & (position[query] - position[key] < window)

    return sees


@dataclass(frozen=True)
class PairBatch:
    """Tokens of some pairs in rows, and where their responses are predicted.

    Token indices below count through the rows: `row · length + column`.
    """

    tokens: Tensor  # (rows, length)
    predictor: Tensor  # (r,) index of the token whose hidden state predicts a response token
    target: Tensor  # (r,) the response token predicted
    response: Tensor  # (r,) 2·pair for chosen, 2·pair + 1 for rejected
    pairs: int

    def to(self, device: torch.device) -> Self:
        """On the device without waiting for it: the copies start from pinned memory."""
        tensors: dict[str, Any] = {name: v for name, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **{name: value.to(device, non_blocking=True) for name, value in tensors.items()})

    def pinned(self) -> Self:
        tensors: dict[str, Any] = {name: v for name, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **{name: value.pin_memory() for name, value in tensors.items()})


@dataclass(frozen=True)
class PackedBatch(PairBatch):
    """Pairs side by side in one row of a fixed number of tokens."""

    positions: Tensor  # (1, length)
    pair: Tensor  # (length,) which pair a token belongs to, −1 for padding
    part: Tensor  # (length,) prompt, chosen or rejected

    @classmethod
    def of(cls, pairs: Sequence[EncodedPair], length: int, pad_token: int = 0) -> "PackedBatch":
        sizes = np.array([(len(p.prompt), len(p.chosen), len(p.rejected)) for p in pairs]).reshape(-1, 3)
        used = int(sizes.sum())
        if used > length:
            raise ValueError(f"pairs of {used} tokens exceed the budget of {length}")
        segments = sizes.ravel()  # prompt, chosen, rejected of each pair
        starts = np.cumsum(segments) - segments
        pair = np.repeat(np.arange(len(pairs)), sizes.sum(axis=1))
        part = np.repeat(np.tile([PROMPT, CHOSEN, REJECTED], len(pairs)), segments)
        first = (sizes[:, :1] * np.array([0, 1, 1])).ravel()  # responses continue the prompt's positions
        positions = np.arange(used) - np.repeat(starts - first, segments)
        predictor = np.arange(used) - 1
        prompt_ends = starts[::3] + sizes[:, 0]
        firsts = starts[2::3][sizes[:, 2] > 0]
        predictor[firsts] = prompt_ends[sizes[:, 2] > 0] - 1  # the prompt predicts either first token
        ids = [ids for p in pairs for ids in (p.prompt, p.chosen, p.rejected)]
        tokens = np.concatenate(ids) if ids else np.empty(0, dtype=np.int32)
        scored = part != PROMPT

        def padded(values: NDArray[Any], fill: int) -> Tensor:
            return torch.from_numpy(np.pad(values.astype(np.int64), (0, length - used), constant_values=fill))

        return cls(
            tokens=padded(tokens, pad_token)[None],
            positions=padded(positions, 0)[None],
            pair=padded(pair, PADDING),
            part=padded(part, PROMPT),
            predictor=torch.from_numpy(predictor[scored]),
            target=torch.from_numpy(tokens[scored].astype(np.int64)),
            response=torch.from_numpy((2 * pair + part - CHOSEN)[scored]),
            pairs=len(pairs),
        )

    def dense_mask(self, window: int | None = None) -> Tensor:
        """(1, 1, length, length) bool; with `window`, keys further back in position are hidden."""
        index = torch.arange(len(self.pair), device=self.pair.device)
        sees = visibility(self.pair, self.part, self.positions[0], window)
        return sees(index[:, None], index[None, :])[None, None]
