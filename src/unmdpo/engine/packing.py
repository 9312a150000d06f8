"""Many pairs in one fixed token budget, each prompt computed once for both of its responses.

A pair is laid out as prompt, chosen, rejected. Both responses attend to the prompt and to themselves,
not to each other, and both continue the prompt's positions, so every token sees exactly what it would
see in a sequence of its own. Fixed shapes keep compiled kernels; the rest of the budget is padding
that attends to itself alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unmdpo.engine.encode import EncodedPair

PROMPT, CHOSEN, REJECTED = 0, 1, 2
PADDING = -1


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


def padded_length(tokens: int, budget: int) -> int:
    """The length a bin of `tokens` is padded to: quarters of the budget, so that few shapes occur.

    The last bin of a batch is seldom full; padding it to the whole budget would waste a tenth of the work.
    """
    step = max(1, budget // 4)
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
class PackedBatch:
    """Pairs side by side on one axis of `budget` tokens, and where their responses are predicted."""

    tokens: Tensor  # (1, budget)
    positions: Tensor  # (1, budget)
    pair: Tensor  # (budget,) which pair a token belongs to, −1 for padding
    part: Tensor  # (budget,) prompt, chosen or rejected
    predictor: Tensor  # (r,) index of the token whose hidden state predicts a response token
    target: Tensor  # (r,) the response token predicted
    response: Tensor  # (r,) 2·pair for chosen, 2·pair + 1 for rejected
    pairs: int
    response_tokens: Tensor  # (2·pairs,) scored tokens of each response

    @classmethod
    def of(cls, pairs: Sequence[EncodedPair], budget: int, pad_token: int = 0) -> "PackedBatch":
        tokens = torch.full((budget,), pad_token, dtype=torch.int64)
        positions = torch.zeros(budget, dtype=torch.int64)
        pair_of = torch.full((budget,), PADDING, dtype=torch.int64)
        part_of = torch.zeros(budget, dtype=torch.int64)
        predictors, targets, responses, counts = [], [], [], []
        start = 0
        for number, pair in enumerate(pairs):
            prompt_end = start + len(pair.prompt)
            if start + pair.tokens > budget:
                raise ValueError(f"pairs of {start + pair.tokens} tokens exceed the budget of {budget}")
            at = start
            for part, ids in ((PROMPT, pair.prompt), (CHOSEN, pair.chosen), (REJECTED, pair.rejected)):
                end, first = at + len(ids), 0 if part == PROMPT else len(pair.prompt)
                tokens[at:end] = torch.from_numpy(ids.astype("int64"))
                positions[at:end] = torch.arange(first, first + len(ids))
                pair_of[at:end], part_of[at:end] = number, part
                if part != PROMPT:
                    predicting = torch.arange(at - 1, end - 1)
                    predicting[:1] = prompt_end - 1  # the prompt's last token predicts either first one
                    predictors.append(predicting)
                    targets.append(tokens[at:end])
                    responses.append(torch.full((len(ids),), 2 * number + part - 1))
                    counts.append(len(ids))
                at = end
            start = at
        empty = torch.empty(0, dtype=torch.int64)
        return cls(
            tokens=tokens[None],
            positions=positions[None],
            pair=pair_of,
            part=part_of,
            predictor=torch.cat(predictors or [empty]),
            target=torch.cat(targets or [empty]),
            response=torch.cat(responses or [empty]),
            pairs=len(pairs),
            response_tokens=torch.tensor(counts, dtype=torch.int64),
        )

    @property
    def fill(self) -> float:
        """Share of the budget that is not padding."""
        return float((self.pair != PADDING).float().mean())

    def to(self, device: torch.device | str) -> "PackedBatch":
        tensors: dict[str, Any] = {name: v for name, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **{name: value.to(device, non_blocking=True) for name, value in tensors.items()})

    def dense_mask(self, window: int | None = None) -> Tensor:
        """(1, 1, budget, budget) bool; with `window`, keys further back in position are hidden."""
        index = torch.arange(len(self.pair), device=self.pair.device)
        sees = visibility(self.pair, self.part, self.positions[0], window)
        return sees(index[:, None], index[None, :])[None, None]
