"""Response log-probabilities of pairs: the one forward pass that everything shares."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from unmdpo.engine.models import body, head_of
from unmdpo.engine.pairs.encode import EncodedPair, EncodedPairs
from unmdpo.engine.pairs.layout import PACKABLE_LAYERS, Packing, layout_of
from unmdpo.engine.pairs.logprobs import token_log_probs
from unmdpo.engine.pairs.packing import BLOCK, PackedBatch, PairBatch
from unmdpo.engine.pairs.padding import PaddedBatch
from unmdpo.engine.ranks import Ranks

# Block sizes of FlexAttention's kernels, measured on one H200 with heads of 64 (benchmarks/engine.py).
HOPPER_BLOCKS: dict[str, int] = {
    "fwd_BLOCK_M": 128, "fwd_BLOCK_N": 128, "fwd_num_warps": 8, "fwd_num_stages": 2,
    "bwd_BLOCK_M1": 64, "bwd_BLOCK_N1": 64, "bwd_BLOCK_M2": 64, "bwd_BLOCK_N2": 64, "bwd_num_warps": 4,
}  # fmt: skip
# Fused kernels round where plain ones do, and sums have a fixed order that does not depend on timing. Passes with
# and without gradient are compiled separately, and this way they give the same log-probabilities.
SAME_ROUNDING = {"emulate_precision_casts": True, "deterministic": True}


class PairScorer(nn.Module):
    """A causal language model as a function from pairs to log-probabilities.

    Training, the reference cache and out-of-fold scoring all use this forward pass. On several ranks, it is the root
    module that gets sharded.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.packing = Packing(layout_of(model), fixed=model.device.type == "cuda")

    @property
    def device(self) -> torch.device:
        return self.model.device

    def forward(self, batch: PairBatch) -> Tensor:
        """(pairs, 2) summed log-probabilities of chosen and rejected, float32 at least."""
        return response_log_probs(self.model, batch)

    def settle(self) -> None:
        """If the model is sharded, frees the weights that a pass without gradient left gathered."""
        reshard = getattr(self, "reshard", None)  # FSDP2 modules have it
        if callable(reshard):
            reshard()

    def prepare(self, pairs: Sequence[EncodedPair], budget: int) -> PairBatch:
        """Lays out the pairs, ready to be copied to the device."""
        batch = self.packing.batch(pairs, budget)
        return batch.pinned() if self.device.type == "cuda" else batch

    @property
    def default_budget(self) -> int:
        """Tokens per microbatch: enough to keep a GPU busy; few on a CPU, where the cost of a dense mask grows
        quadratically."""
        return 16_384 if self.device.type == "cuda" else 512


@torch.no_grad()
def score(scorer: PairScorer, pairs: EncodedPairs, token_budget: int | None = None) -> Tensor:
    """(n, 2) log-probabilities of chosen and rejected for every pair, NaN where invalid."""
    ranks, was_training = Ranks.current(), scorer.training
    budget = token_budget or scorer.default_budget
    slots = pairs.valid.nonzero()[0]
    log_probs = torch.zeros(len(slots), 2, device=scorer.device)
    scorer.train(False)
    try:
        for members, counts in ranks.turns(scorer.packing.groups(pairs.lengths[slots], budget)):
            batch = scorer.prepare(pairs.select(slots[members].tolist()), budget)
            logs = scorer(batch.to(scorer.device)).float()
            if counts:
                log_probs[torch.tensor(members).to(scorer.device, non_blocking=True)] = logs
    finally:
        scorer.settle()
        scorer.train(was_training)
    scores = torch.full((len(pairs), 2), torch.nan)
    scores[torch.from_numpy(slots)] = ranks.total(log_probs).cpu()
    return scores


def response_log_probs(model: PreTrainedModel, batch: PairBatch) -> Tensor:
    """(pairs, 2) summed log-probabilities of chosen and rejected, float32 at least.

    Only the tokens that predict a response go through the head.
    """
    hidden = body(model)(input_ids=batch.tokens, use_cache=False, **_inputs(model, batch)).last_hidden_state
    head = head_of(model)
    softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    predicting = hidden.flatten(0, 1).index_select(0, batch.predictor)  # (r, d)
    logs = token_log_probs(predicting, head.weight, batch.target, softcap)
    sums = logs.new_zeros(2 * batch.pairs).index_add(0, batch.response, logs)
    return torch.stack([sums[0::2], sums[1::2]], dim=1)  # a copy, not a view: sharded modules hook their output


def _inputs(model: PreTrainedModel, batch: PairBatch) -> dict[str, Any]:
    if isinstance(batch, PaddedBatch):
        return {"attention_mask": batch.mask}
    assert isinstance(batch, PackedBatch)
    mask = attention_mask(model, batch)
    return {"position_ids": batch.positions, "attention_mask": mask, **kernel_options(model)}


def kernel_options(model: PreTrainedModel) -> dict[str, Any]:
    """Our block sizes on hardware where we measured them, PyTorch's elsewhere."""
    config = model.config.get_text_config()
    if config._attn_implementation != "flex_attention" or model.device.type != "cuda":
        return {}
    hopper = torch.cuda.get_device_capability(model.device) >= (9, 0)
    if not hopper or getattr(config, "head_dim", None) != 64:
        return {}
    return {"kernel_options": HOPPER_BLOCKS}


def compile_layers(model: PreTrainedModel) -> None:
    """Compiles each decoder layer; all layers share the code compiled for a shape."""
    # a few shapes, each with and without gradient, and a first layer whose input needs no gradient
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    for layer in body(model).layers:  # type: ignore[union-attr]
        layer.compile(fullgraph=True, dynamic=False, options=SAME_ROUNDING)


def attention_mask(model: PreTrainedModel, batch: PackedBatch) -> Any:
    """The layout's mask in the form the model's attention expects; one per kind of layer."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds - PACKABLE_LAYERS:
        raise ValueError(f"layers of kind {sorted(kinds - PACKABLE_LAYERS)} cannot be packed")
    windows = {"full_attention": None, "sliding_attention": getattr(config, "sliding_window", None)}
    flex = config._attn_implementation == "flex_attention"
    masks = {
        kind: block_mask(batch, windows[kind]) if flex else dense_mask(model, batch, windows[kind]) for kind in kinds
    }
    return masks if len(masks) > 1 else next(iter(masks.values()))


def dense_mask(model: PreTrainedModel, batch: PackedBatch, window: int | None) -> Tensor:
    """Boolean for SDPA, additive for eager attention."""
    mask = batch.dense_mask(window)
    if model.config.get_text_config()._attn_implementation == "sdpa":
        return mask
    return torch.zeros(mask.shape, dtype=model.dtype, device=mask.device).masked_fill(
        ~mask, torch.finfo(model.dtype).min
    )


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
