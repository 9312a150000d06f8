"""Response log-probabilities of pairs: the one forward pass that everything shares."""

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from unmdpo.engine.models import body, decoder_layers, disable_dropout
from unmdpo.engine.pairs.flash import can_flash
from unmdpo.engine.pairs.head import Head
from unmdpo.engine.pairs.layout import Layout, Packing
from unmdpo.engine.pairs.masks import CannotPack, packed_masks
from unmdpo.engine.pairs.packing import PackedBatch, PairBatch
from unmdpo.engine.pairs.padding import PaddedBatch, SingleBatch
from unmdpo.engine.pairs.rope import forget_length, rope_limit
from unmdpo.engine.pairs.router import Router
from unmdpo.engine.pairs.sequences import ATTENTION
from unmdpo.engine.text.encoded import EncodedPair

# Block sizes of FlexAttention's kernels, measured on one H200 with heads of 64 (benchmarks/engine.py).
HOPPER_BLOCKS: dict[str, int] = {
    "fwd_BLOCK_M": 128, "fwd_BLOCK_N": 128, "fwd_num_warps": 8, "fwd_num_stages": 2,
    "bwd_BLOCK_M1": 64, "bwd_BLOCK_N1": 64, "bwd_BLOCK_M2": 64, "bwd_BLOCK_N2": 64, "bwd_num_warps": 4,
}  # fmt: skip
# Fused kernels round where plain ones do, and sums have a fixed order that does not depend on timing. Passes with
# and without gradient are compiled separately, and this way they give the same log-probabilities.
SAME_ROUNDING = {"emulate_precision_casts": True, "deterministic": True}


EXACT = 256  # tokens whose logits are taken to float64 at once
GPU_BUDGET = 16_384  # tokens per microbatch, at least
PACKED: dict[Layout, str] = {"flash": ATTENTION, "packed": "flex_attention"}  # attention for these layouts on a GPU


class PairScorer(nn.Module):
    """A causal language model as a function from pairs to log-probabilities.

    Training, the reference cache and out-of-fold scoring all use this forward pass. On several ranks, it is the root
    module that gets sharded. Which layout is right for the model is for `proof` to find out.
    """

    proven = False
    summed = True  # scores are sums over tokens, and so are their errors
    compilable = True  # as far as anyone has tried

    def __init__(self, model: PreTrainedModel, device: torch.device | None = None) -> None:
        """`device` is where a model without weights will be."""
        super().__init__()
        self.device = device or model.device
        self.model, self.head, self.training = model, Head.of(model), model.training
        self.router = Router.of(model)
        disable_dropout(model)
        self._fixed, self._limit = self.device.type == "cuda", rope_limit(model)
        self._usual = self.attention
        if self._usual in PACKED.values():  # which another scorer left behind
            self._usual = "sdpa" if model._supports_sdpa else "eager"
        self.packing = Packing("packed", self._fixed, self._limit)

    def use(self, layout: Layout, *, usual_attention: bool = False) -> None:
        """Lays pairs out this way from now on. On a GPU, packing takes an attention that skips what a token does not
        see; a dense mask would also do, but only for few tokens."""
        if self._fixed:
            wanted = self._usual if usual_attention else PACKED.get(layout, self._usual)
            if self.attention != wanted:
                self.model.set_attn_implementation(wanted)
        self.packing = Packing(layout, self._fixed, self._limit)

    @property
    def layouts(self) -> list[Layout]:
        """Those that are worth trying, from fast to plain."""
        known: tuple[Layout, ...] = get_args(Layout)
        return [layout for layout in known if layout != "flash" or can_flash(self.model, self.device)]

    @property
    def attention(self) -> str:
        """The attention's implementation, as Transformers names it."""
        name: str = self.model.config.get_text_config()._attn_implementation
        return name

    @property
    def compiles(self) -> bool:
        """Whether layers are compiled on a GPU. Loops over tokens, as in layers with a state, would be compiled for
        every length."""
        return self.compilable and self.packing.layout not in ("masked", "single") and can_compile(self.model)

    def forward(self, batch: PairBatch) -> Tensor:
        """(pairs, 2) summed log-probabilities of chosen and rejected, float32 at least."""
        if self.router is not None:
            self.router.loss = None  # of an earlier pass
        if isinstance(batch, SingleBatch) or self.head is None:
            logs = _own_log_probs(self.model, batch)
        else:
            logs = _fused_log_probs(self.model, self.head, batch, self.router if self.training else None)
        sums = logs.new_zeros(2 * batch.pairs).index_add(0, batch.response, logs)
        chosen, rejected = sums[0::2], sums[1::2]
        rejected = torch.where(batch.same, chosen, rejected)
        return torch.stack([chosen, rejected], dim=1)  # a copy, not a view: sharded modules hook their output

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
        return GPU_BUDGET if self.device.type == "cuda" else 512


def _fused_log_probs(model: PreTrainedModel, head: Head, batch: PairBatch, router: Router | None) -> Tensor:
    """(r,) log-probabilities of the response tokens. Only the tokens that predict them go through the head."""
    predicting = hidden_states(model, batch, router).index_select(0, batch.predictor)  # (r, d)
    return head.log_probs(model.get_output_embeddings(), predicting, batch.target)  # type: ignore[no-untyped-call]


def hidden_states(model: PreTrainedModel, batch: PairBatch, router: Router | None) -> Tensor:
    """(rows · length, d) of the last layer."""
    more = {} if router is None else {"output_router_logits": True}
    if isinstance(batch, PackedBatch):
        with packed_masks(model, batch):
            # a mask of ones: without any, models look for packed sequences in the positions, by rules of their own
            made = body(model)(
                input_ids=batch.tokens, attention_mask=torch.ones_like(batch.tokens), position_ids=batch.positions,
                use_cache=False, **kernel_options(model), **more,
            )  # fmt: skip
    else:
        assert isinstance(batch, PaddedBatch)
        mask = batch.mask if batch.masked else None
        made = body(model)(input_ids=batch.tokens, attention_mask=mask, use_cache=False, **more)
    if router is not None:
        router.watch(made.router_logits, batch.real.flatten())
    states: Tensor = made.last_hidden_state
    return states.flatten(0, 1)


def _own_log_probs(model: PreTrainedModel, batch: PairBatch) -> Tensor:
    """(r,) the same from the model's own logits, one sequence at a time. Float32 sums over a large vocabulary would
    be off by more than all the rest on a CPU."""
    if not isinstance(batch, SingleBatch):
        raise CannotPack("its logits are not a plain function of its last hidden states")
    logs = []
    eager = torch.compiler.set_stance("force_eager")  # each length would be compiled anew
    for number, (row, length) in enumerate(zip(batch.tokens, batch.lengths, strict=True)):
        forget_length(model)
        predictors = batch.predictor[batch.response == number] - number * batch.tokens.shape[1]
        with eager:
            logits = model(input_ids=row[None, :length], use_cache=False).logits[0]
        for some in torch.split(predictors, EXACT):
            found = -cross_entropy(logits[some].double(), row[some + 1], reduction="none")
            logs.append(found if logits.dtype == torch.float64 else found.float())
    forget_length(model)
    return torch.cat(logs)


def kernel_options(model: PreTrainedModel) -> dict[str, Any]:
    """Our block sizes on hardware where we measured them, PyTorch's elsewhere."""
    config = model.config.get_text_config()
    if config._attn_implementation != "flex_attention" or model.device.type != "cuda":
        return {}
    hopper = torch.cuda.get_device_capability(model.device) >= (9, 0)
    if not hopper or getattr(config, "head_dim", None) != 64:
        return {}
    return {"kernel_options": HOPPER_BLOCKS}


def can_compile(model: PreTrainedModel) -> bool:
    return not model._is_stateful


def compile_layers(scorer: PairScorer) -> None:
    """Compiles each decoder layer; all layers share the compiled code. With FlexAttention it is made anew for each of
    a few lengths; without, it takes any."""
    if not scorer.compiles:
        return
    layout = scorer.packing.layout
    # a few shapes, each with and without gradient, and a first layer whose input needs no gradient
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    layers, plain = decoder_layers(scorer.model), scorer.router is None  # what routers do is watched between graphs
    for layer in layers:
        layer.compile(fullgraph=plain, dynamic=layout != "packed", options=SAME_ROUNDING)
    if (layout == "padded" or not plain) and not _runs(scorer):  # a family that nobody has tried this with
        scorer.compilable = False
        for layer in layers:
            layer._compiled_call_impl = None


def _runs(scorer: PairScorer) -> bool:
    """Whether a small batch goes through the model and back."""
    row = np.arange(3, dtype=np.int32)
    pairs = [EncodedPair(row, row, row[:2], valid=True)] * 3
    try:
        scorer(scorer.prepare(pairs, scorer.default_budget).to(scorer.device)).sum().backward()
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever compilers make of a model's code
        return False
    finally:
        scorer.zero_grad(set_to_none=True)
    return True
