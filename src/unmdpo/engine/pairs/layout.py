"""How pairs are laid out for a model: packed if its attention allows, padded otherwise."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from unmdpo.engine.pairs.encode import EncodedPair
from unmdpo.engine.pairs.packing import BLOCK, PackedBatch, PairBatch, first_fit, padded_length, rounded_up
from unmdpo.engine.pairs.padding import PaddedBatch, alike
from unmdpo.errors import UnmdpoWarning

Layout = Literal["packed", "padded"]
PACKABLE_LAYERS = {"full_attention", "sliding_attention"}


def layout_of(model: PreTrainedModel) -> Layout:
    """Packed, unless the model's layers do not accept a custom mask."""
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"])
    strange = sorted(kinds - PACKABLE_LAYERS)
    if model._supports_flex_attn and not strange:
        return "packed"
    why = f"it has layers of kind {', '.join(strange)}" if strange else "it does not support FlexAttention"
    warnings.warn(
        f"{type(model).__name__} cannot be packed ({why}): pairs are padded instead, which is slower",
        UnmdpoWarning,
        stacklevel=2,
    )
    return "padded"


@dataclass(frozen=True)
class Packing:
    """How a model's pairs are grouped and laid out.

    With `fixed` shapes, kernels are compiled for only a few shapes, and every packed pair starts at an attention
    block, so its result does not depend on its neighbors, to the last bit.
    """

    layout: Layout
    fixed: bool

    @property
    def align(self) -> int:
        return BLOCK if self.fixed else 1

    def groups(self, lengths: NDArray[np.int32], budget: int) -> list[list[int]]:
        """Groups rows of `lengths` (n, 3) that fit the token budget together; a longer pair gets its own group."""
        if not len(lengths):
            return []
        if self.layout == "packed":
            spans = self._spans(lengths).tolist()
            return first_fit(spans, max(budget, *spans))
        return alike((2 * _longest(lengths)).tolist(), budget)  # two rows for each pair

    def batch(self, pairs: Sequence[EncodedPair], budget: int) -> PairBatch:
        """Lays out one group."""
        if self.layout == "padded":
            return PaddedBatch.of(pairs)
        spans = sum(rounded_up(pair.tokens, self.align) for pair in pairs)
        return PackedBatch.of(pairs, padded_length(spans, budget, self.fixed), align=self.align)

    def fill(self, lengths: NDArray[np.int32], groups: list[list[int]], budget: int) -> float:
        """Share of laid-out tokens that are not padding, over all groups."""
        prompts = 1 if self.layout == "packed" else 2  # how often each prompt is laid out
        used = sum(int((prompts * lengths[g, 0] + lengths[g, 1] + lengths[g, 2]).sum()) for g in groups)
        laid_out = sum(self._laid_out(lengths[group], budget) for group in groups)
        return used / laid_out if laid_out else 1.0

    def _laid_out(self, lengths: NDArray[np.int32], budget: int) -> int:
        if self.layout == "padded":
            return 2 * len(lengths) * int(_longest(lengths).max())
        return padded_length(int(self._spans(lengths).sum()), budget, self.fixed)

    def _spans(self, lengths: NDArray[np.int32]) -> NDArray[np.int64]:
        totals: NDArray[np.int64] = lengths.sum(axis=1, dtype=np.int64)
        return -(-totals // self.align) * self.align


def _longest(lengths: NDArray[np.int32]) -> NDArray[np.int32]:
    """(n,) tokens of each pair's longer sequence."""
    longest: NDArray[np.int32] = lengths[:, 0] + lengths[:, 1:].max(axis=1)
    return longest
