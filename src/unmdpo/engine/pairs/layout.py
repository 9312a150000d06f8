"""How pairs are grouped and laid out for a model: packed, padded, or one sequence at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmdpo.engine.pairs.packing import BLOCK, PackedBatch, PairBatch, balanced, first_fit, padded_length, rounded_up
from unmdpo.engine.pairs.padding import PaddedBatch, SingleBatch, alike
from unmdpo.engine.text.encode import NO_LIMIT
from unmdpo.engine.text.encoded import EncodedPair, longest

ROUND = 128  # tokens; matrix products are fast at multiples of it
PADDED_TO = 64  # tokens; so are they in rows of such lengths
# From fast to plain. Flash is packed too, for FlashAttention. Padding on the right needs no mask where attention is
# causal: no token sees what comes after it.
Layout = Literal["flash", "packed", "padded", "masked", "single"]


class Groups(NamedTuple):
    """Pairs that are laid out together, by position. Every rank must do its share of one kind before the other, since
    a batch of another kind takes another number of passes."""

    together: list[list[int]]
    single: list[list[int]]

    @property
    def all(self) -> list[list[int]]:
        return [*self.together, *self.single]


@dataclass(frozen=True)
class Packing:
    """On a GPU shapes are `fixed`: FlexAttention is compiled for only a few of them, and every packed pair starts at
    one of its blocks, so its result does not depend on its neighbors, to the last bit. FlashAttention takes any
    length.

    Some models change their positions' frequencies with the length of the input. Sequences over `limit` tokens then
    cannot share a batch with shorter ones: they go one at a time.
    """

    layout: Layout
    fixed: bool
    limit: int = NO_LIMIT

    @property
    def align(self) -> int:
        return BLOCK if self._few_shapes else 1

    @property
    def _few_shapes(self) -> bool:
        return self.fixed and self.layout != "flash"

    def _length(self, tokens: int, budget: int) -> int:
        """What a row of this many tokens is padded to."""
        return rounded_up(tokens, ROUND) if self.layout == "flash" else padded_length(tokens, budget, self.fixed)

    @property
    def packs(self) -> bool:
        return self.layout in ("flash", "packed")

    def groups(self, lengths: NDArray[np.int32], budget: int, ranks: int = 1) -> Groups:
        """Groups rows of `lengths` (n, 3) that fit the token budget together; a longer pair gets its own group."""
        whole = longest(lengths)
        alone = (whole > self.limit) | (self.layout == "single")
        shared = (~alone).nonzero()[0]
        single = [[int(place)] for place in alone.nonzero()[0]]
        if not len(shared):
            return Groups([], single)
        if self.packs:
            spans = self._spans(lengths[shared]).tolist()
            room = max(budget, *spans)
            bins = first_fit(spans, room) if ranks == 1 else balanced(spans, room, ranks)
        else:
            bins = alike((2 * whole[shared]).tolist(), budget)  # two rows for each pair
        return Groups([shared[members].tolist() for members in bins], single)

    def batch(self, pairs: Sequence[EncodedPair], budget: int) -> PairBatch:
        """Lays out one group."""
        whole = max(len(pair.prompt) + max(len(pair.chosen), len(pair.rejected)) for pair in pairs)
        if self.layout == "single" or whole > self.limit:
            return SingleBatch.of(pairs)
        if not self.packs:
            return PaddedBatch.of(pairs, multiple=PADDED_TO if self.fixed else 1, masked=self.layout == "masked")
        spans = sum(rounded_up(pair.tokens, self.align) for pair in pairs)
        length = self._length(spans, budget)
        return PackedBatch.of(pairs, length, align=self.align, sequences=self.layout == "flash")

    def fill(self, lengths: NDArray[np.int32], groups: Groups, budget: int) -> float:
        """Share of laid-out tokens that are not padding, over all groups."""
        prompts = 1 if self.packs else 2  # how often each prompt is laid out
        used = sum(_tokens(lengths[group], prompts) for group in groups.together)
        laid_out = sum(self._laid_out(lengths[group], budget) for group in groups.together)
        alone = sum(_tokens(lengths[group], 2) for group in groups.single)
        return (used + alone) / (laid_out + alone) if laid_out + alone else 1.0

    def _laid_out(self, lengths: NDArray[np.int32], budget: int) -> int:
        if not self.packs:
            return 2 * len(lengths) * rounded_up(int(longest(lengths).max()), PADDED_TO if self.fixed else 1)
        return self._length(int(self._spans(lengths).sum()), budget)

    def _spans(self, lengths: NDArray[np.int32]) -> NDArray[np.int64]:
        totals: NDArray[np.int64] = lengths.sum(axis=1, dtype=np.int64)
        return -(-totals // self.align) * self.align


def _tokens(lengths: NDArray[np.int32], prompts: int) -> int:
    return int((prompts * lengths[:, 0] + lengths[:, 1] + lengths[:, 2]).sum())
