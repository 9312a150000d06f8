"""Packs many pairs into one fixed token budget, computing each prompt once for both responses.

A pair is laid out as prompt, chosen, rejected. Both responses attend to the prompt and to themselves, but not to each
other, and both continue the prompt's positions, so every token sees exactly what it would see in a separate sequence.
Fixed shapes avoid recompiling kernels; the rest of the budget is padding that attends only to itself.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmdpo.engine.pairs.sequences import Sequences
from unmdpo.engine.text.encoded import EncodedPair, unmarked

PROMPT, CHOSEN, REJECTED = 0, 1, 2
BLOCK = 128  # tokens per block of FlexAttention's mask


def first_fit(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Bins of positions that fit the budget together: longest first, each into the first bin with room."""
    bins, room = list[list[int]](), _Room(len(lengths), budget)
    for item in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if lengths[item] > budget:
            raise ValueError(f"a pair of {lengths[item]} tokens does not fit the budget of {budget}")
        place = room.take(lengths[item])
        if place == len(bins):
            bins.append([])
        bins[place].append(item)
    return [sorted(members) for members in bins]


class _Room:
    """The room left in each of many bins, as a tree of maxima: the first bin with enough is found in log time."""

    def __init__(self, bins: int, budget: int) -> None:
        self.leaves = 1 << max(0, bins - 1).bit_length()
        self.most = [budget] * (2 * self.leaves)  # node i has children 2i and 2i + 1

    def take(self, length: int) -> int:
        node = 1
        while node < self.leaves:
            node = 2 * node if self.most[2 * node] >= length else 2 * node + 1
        place = node - self.leaves
        self.most[node] -= length
        while node > 1:
            node //= 2
            self.most[node] = max(self.most[2 * node], self.most[2 * node + 1])
        return place


def balanced(lengths: Sequence[int], budget: int, ranks: int) -> list[list[int]]:
    """Bins as in `first_fit`, but a multiple of `ranks` of them and of equal load, so that no rank waits for another:
    longest first, each into the emptiest bin. Where that does not fit the budget, `first_fit` is kept."""
    tight = first_fit(lengths, budget)
    count = min(rounded_up(len(tight), ranks), len(lengths))
    loads, bins = [(0, place) for place in range(count)], [list[int]() for _ in range(count)]
    for item in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        load, place = loads[0]
        if load + lengths[item] > budget:
            return tight
        bins[place].append(item)
        heapq.heapreplace(loads, (load + lengths[item], place))
    return [sorted(members) for members in bins]


def padded_length(tokens: int, budget: int, fixed: bool) -> int:
    """The length a bin of `tokens` is padded to. With `fixed` shapes it is a multiple of a quarter of the budget,
    because kernels are compiled for each shape and there should be few of them.

    The last bin of a batch is seldom full; padding it to the whole budget would waste a tenth of the work.
    """
    return rounded_up(tokens, rounded_up(-(-budget // 4), BLOCK) if fixed else 1)


def rounded_up(tokens: int, step: int) -> int:
    return -(-tokens // step) * step


class Runs(NamedTuple):
    """What each token attends to: two runs of keys, [own, itself] and [shared, shared_end)."""

    own: Tensor  # (length,)
    shared: Tensor  # (length,)
    shared_end: Tensor  # (length,)

    def see(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether these queries may attend to these keys, elementwise over token indices."""
        itself = (key >= self.own[query]) & (key <= query)
        return itself | ((key >= self.shared[query]) & (key < self.shared_end[query]))

    def seen_in_blocks(self) -> Tensor:
        """(blocks, blocks) how many (query, key) token pairs are visible in each block pair."""
        length = len(self.own)
        edges = torch.arange(0, length, BLOCK, device=self.own.device)  # (blocks,)
        after = torch.arange(1, length + 1, device=self.own.device)
        overlaps = [
            (torch.minimum(end[:, None], edges + BLOCK) - torch.maximum(start[:, None], edges)).clamp(min=0)
            for start, end in ((self.own, after), (self.shared, self.shared_end))
        ]
        return sum(overlaps).view(-1, BLOCK, len(edges)).sum(dim=1)  # type: ignore[union-attr]


@dataclass(frozen=True)
class PairBatch:
    """The tokens of some pairs, in rows, and where their responses are predicted.

    Token indices below count through the rows: `row · length + column`.
    """

    tokens: Tensor  # (rows, length)
    predictor: Tensor  # (r,) index of the token whose hidden state predicts a response token
    target: Tensor  # (r,) the predicted response token
    response: Tensor  # (r,) 2·pair for chosen, 2·pair + 1 for rejected
    same: Tensor  # (pairs,) bool: both responses are the same tokens
    last: Tensor  # (2·pairs,) index of the last token of chosen and rejected
    pairs: int

    def to(self, device: torch.device) -> Self:
        """Copies to the device without waiting for it, if the batch is pinned."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Self:
        return self._with(Tensor.pin_memory)

    def _with(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                changed[name] = change(value)
            elif isinstance(value, Runs):
                changed[name] = Runs(*map(change, value))
            elif isinstance(value, Sequences):
                changed[name] = value.with_tensors(change)
        return replace(self, **changed)


def same_responses(pairs: Sequence[EncodedPair]) -> Tensor:
    """(pairs,) whether a response is compared with itself. Then the difference of log-ratios is exactly zero, as the
    paper's theorem has it; rounding differs with the place of a sequence in a batch."""
    return torch.tensor([np.array_equal(pair.chosen, pair.rejected) for pair in pairs], dtype=torch.bool)


@dataclass(frozen=True)
class PackedBatch(PairBatch):
    """Pairs side by side in one row of a fixed number of tokens."""

    positions: Tensor  # (1, length)
    runs: Runs
    longest: int  # tokens of the longest sequence
    real: Tensor  # (length,) bool: not padding
    sequences: Sequences | None = None  # for attention without masks

    @classmethod
    def of(
        cls, pairs: Sequence[EncodedPair], length: int, pad_token: int = 0, align: int = 1, *, sequences: bool = False
    ) -> "PackedBatch":
        """Every pair starts at a multiple of `align`."""
        sizes = np.array([(len(p.prompt), len(p.chosen), len(p.rejected)) for p in pairs]).reshape(-1, 3)
        spans = -(-sizes.sum(axis=1) // align) * align
        if spans.sum() > rounded_up(length, align):
            raise ValueError(f"pairs of {spans.sum()} tokens exceed the budget of {length}")
        bases = np.cumsum(spans) - spans  # (n,) where each pair starts
        prompt_ends = bases + sizes[:, 0]
        starts = np.stack([bases, prompt_ends, prompt_ends + sizes[:, 1]], axis=1).ravel()  # of segments
        segments = sizes.ravel()  # prompt, chosen, rejected of each pair
        ends = prompt_ends[:, None] + np.cumsum(sizes[:, 1:], axis=1) - 1  # (n, 2)

        def each(values: NDArray[Any]) -> NDArray[Any]:
            """Repeats each segment's value for each of its tokens."""
            return np.repeat(values, segments)

        at = each(starts - (np.cumsum(segments) - segments)) + np.arange(segments.sum())
        part, pair = (each(np.tile([PROMPT, CHOSEN, REJECTED], len(pairs))), each(np.arange(3 * len(pairs)) // 3))
        rejected = part == REJECTED
        # the rejected response continues the prompt's positions, and the prompt predicts its first token
        positions = at - bases[pair] - np.where(rejected, sizes[pair, 1], 0)
        predictor = np.where(rejected & (at == each(starts)), prompt_ends[pair], at) - 1
        ids = [ids for p in pairs for ids in (p.prompt, p.chosen, p.rejected)]
        marked = np.concatenate(ids) if ids else np.empty(0, dtype=np.int32)
        tokens, scored = unmarked(marked), (part != PROMPT) & (marked >= 0)

        def placed(values: NDArray[Any], elsewhere: NDArray[Any] | int) -> Tensor:
            row = np.full(length, elsewhere, dtype=np.int64)
            row[at] = values
            return torch.from_numpy(row)

        return cls(
            tokens=placed(tokens, pad_token)[None],
            positions=placed(positions, 0)[None],
            runs=Runs(
                own=placed(np.where(rejected, each(starts), bases[pair]), np.arange(length)),
                shared=placed(np.where(rejected, bases[pair], 0), 0),
                shared_end=placed(np.where(rejected, prompt_ends[pair], 0), 0),
            ),
            predictor=torch.from_numpy(predictor[scored]),
            target=torch.from_numpy(tokens[scored].astype(np.int64)),
            response=torch.from_numpy((2 * pair + part - CHOSEN)[scored]),
            same=same_responses(pairs),
            last=torch.from_numpy(ends.ravel()),
            pairs=len(pairs),
            longest=int(positions.max(initial=0)) + 1,
            real=placed(np.ones(len(at)), 0).bool(),
            sequences=Sequences.of(sizes, spans, length) if sequences else None,
        )

    def runs_within(self, window: int | None) -> Runs:
        """What each token sees; with a sliding `window`, only the last `window` positions."""
        if window is None:
            return self.runs
        index = torch.arange(len(self.runs.own), device=self.runs.own.device)
        reach = self.runs.shared + self.positions[0] - window + 1
        return Runs(
            own=torch.maximum(self.runs.own, index - window + 1),
            shared=torch.minimum(torch.maximum(self.runs.shared, reach), self.runs.shared_end),
            shared_end=self.runs.shared_end,
        )

    def dense_mask(self, window: int | None = None) -> Tensor:
        """(1, 1, length, length) bool."""
        index = torch.arange(len(self.runs.own), device=self.runs.own.device)
        return self.runs_within(window).see(index[:, None], index[None, :])[None, None]
