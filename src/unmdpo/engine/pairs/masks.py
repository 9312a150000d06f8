"""Which tokens of a packed batch see which, in the form that a model's attention expects.

A layout knows which tokens belong together. How far back a layer looks (a sliding window, a chunk) is the model's
business, and it keeps that in many places, so we ask: models build their masks through one registry of Transformers,
each with a function of two positions. For the length of one forward pass we replace that registry, and join the
model's function with the layout.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from unmdpo.engine.pairs.packing import BLOCK, PackedBatch
from unmdpo.engine.pairs.sequences import ATTENTION

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # batch, head, query position, key position → visible


class CannotPack(Exception):
    """This model cannot score packed pairs."""


@contextlib.contextmanager
def packed_masks(model: PreTrainedModel, batch: PackedBatch) -> Iterator[None]:
    """While active, the model's masks are those of the packed batch. The model must ask for at least one."""
    attention, asked = model.config.get_text_config()._attn_implementation, False

    def mask(*_: Any, mask_function: Rule, dtype: torch.dtype = torch.float32, **__: Any) -> Any:
        nonlocal asked
        asked = True
        if attention in (ATTENTION, "flex_attention"):
            window = window_of(mask_function, batch.longest, batch.tokens.device)
            if attention == "flex_attention":
                return block_mask(batch, window)
            assert batch.sequences is not None  # the layout for this attention has them
            return batch.sequences._replace(window=window)
        return _additive(_dense(batch, mask_function), dtype) if attention == "eager" else _dense(batch, mask_function)

    ALL_MASK_ATTENTION_FUNCTIONS[attention] = mask
    try:
        yield
    finally:
        del ALL_MASK_ATTENTION_FUNCTIONS[attention]  # type: ignore[no-untyped-call]
    if not asked:
        raise CannotPack("it makes its masks by itself")


def _dense(batch: PackedBatch, rule: Rule) -> Tensor:
    """(1, 1, length, length) bool: what the layout and the model both allow."""
    places, zero = batch.positions[0], batch.positions.new_zeros(())
    return batch.dense_mask() & rule(zero, zero, places[:, None], places[None, :])


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """As eager attention wants it: 0 where visible."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)


def window_of(rule: Rule, longest: int, device: torch.device | None = None) -> int | None:
    """How many positions back a causal rule looks, its own included; None if it sees everything within `longest`.

    On the CPU, so that a GPU need not be waited for, except for rules that use its tensors. Rules of another kind
    raise `CannotPack`.
    """
    try:
        return _window(rule, longest, torch.device("cpu"))
    except RuntimeError:
        return _window(rule, longest, device or torch.device("cpu"))


def _window(rule: Rule, longest: int, device: torch.device) -> int | None:
    zero, keys = torch.zeros((), dtype=torch.long, device=device), torch.arange(longest, device=device)

    def seen(query: int) -> int:
        visible = rule(zero, zero, torch.tensor(query, device=device), keys).expand(longest)
        count = int(visible.sum())
        return count if bool(visible[query + 1 - count : query + 1].all()) else -1

    window = seen(longest - 1)
    others = {longest // 2, max(0, longest - 2), min(max(0, window), longest - 1)}
    if any(seen(query) != min(query + 1, window) for query in others):
        raise CannotPack("its attention is neither causal nor a sliding window")
    return None if window == longest else window


def block_mask(batch: PackedBatch, window: int | None) -> Any:
    """FlexAttention's block mask: blocks between pairs that do not see each other are never computed.

    It is counted from the layout's runs in a fraction of a millisecond. PyTorch's `create_block_mask` checks every
    pair of tokens, which for 16,384 tokens takes gigabytes or, when compiled, minutes of compilation.
    """
    from torch.nn.attention.flex_attention import BlockMask  # noqa: PLC0415 - slow to import

    runs = batch.runs_within(window)

    def allowed(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return runs.see(query, key)

    seen = runs.seen_in_blocks()
    whole = seen == BLOCK * BLOCK
    return BlockMask.from_kv_blocks(
        *_by_row((seen > 0) & ~whole),
        *_by_row(whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=allowed,
        seq_lengths=(len(runs.own), len(runs.own)),
    )


def _by_row(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """(1, 1, rows) how many blocks are set in each row, and (1, 1, rows, columns) their indices, set ones first."""
    which = blocks.int().argsort(dim=1, descending=True, stable=True).int()
    return blocks.sum(dim=1, dtype=torch.int32)[None, None], which[None, None]
