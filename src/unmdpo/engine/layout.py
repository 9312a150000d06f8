"""How pairs are laid out for a model: packed where its attention allows, padded elsewhere."""

import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from unmdpo.engine.encode import EncodedPair
from unmdpo.engine.packing import PackedBatch, PairBatch, first_fit, padded_length
from unmdpo.engine.padded import PaddedBatch, alike
from unmdpo.errors import UnmdpoWarning

Layout = Literal["packed", "padded"]
PACKABLE_LAYERS = {"full_attention", "sliding_attention"}


def layout_of(model: PreTrainedModel) -> Layout:
    """Packed, unless the model says that its layers do not take a mask of ours."""
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


def microbatches(layout: Layout, lengths: NDArray[np.int32], budget: int) -> list[list[int]]:
    """Rows of `lengths` (n, 3) in groups that fit the token budget; a longer pair has a group of its own."""
    if not len(lengths):
        return []
    if layout == "packed":
        totals = lengths.sum(axis=1).tolist()
        return first_fit(totals, max(budget, *totals))
    return alike((lengths[:, 0] + lengths[:, 1:].max(axis=1)).tolist(), budget)


def lay_out(layout: Layout, pairs: Sequence[EncodedPair], budget: int, fixed: bool) -> PairBatch:
    """One batch of a group; with `fixed` only few shapes occur."""
    if layout == "packed":
        return PackedBatch.of(pairs, padded_length(sum(pair.tokens for pair in pairs), budget, fixed))
    return PaddedBatch.of(pairs)


def fill_rate(
    layout: Layout, lengths: NDArray[np.int32], groups: list[list[int]], budget: int, fixed: bool
) -> float:
    """Share of the laid-out tokens that are not padding, over all groups."""
    used = laid_out = 0
    for members in groups:
        prompt, responses = lengths[members, 0], lengths[members, 1:]
        if layout == "packed":
            tokens = int(prompt.sum() + responses.sum())
            laid_out += padded_length(tokens, budget, fixed)
        else:
            tokens = int(2 * prompt.sum() + responses.sum())
            laid_out += 2 * len(members) * int((prompt + responses.max(axis=1)).max())
        used += tokens
    return used / laid_out if laid_out else 1.0
