"""Before a model is used, proof that our fast ways of scoring give its own log-probabilities.

A handful of the user's own pairs is scored the plain way (one sequence at a time, the model's own logits) and in each
layout from the fastest on. The first that agrees is used. Nothing is assumed about families of models, so one that
does not exist yet is scored right or refused.

In bfloat16, rounding would hide a small mistake. Where there is room for float32 weights, each layout must agree in
that precision first, and then again as it will be used.
"""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from unmdpo.core.errors import UnmdpoWarning, UserError
from unmdpo.engine.models import longest_input
from unmdpo.engine.pairs.flash import check_kernel
from unmdpo.engine.pairs.layout import Layout
from unmdpo.engine.pairs.masks import CannotPack
from unmdpo.engine.pairs.packing import PackedBatch
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.ranks import Ranks
from unmdpo.engine.text.encode import EncodedPair, EncodedPairs, longest

# Rounding adds up like a random walk: nats per response, divided by the root of its tokens.
# On one H200 with a random 1B model, 0.02 in bfloat16 and 0.0003 in float32.
BOUNDS = {torch.float64: 1e-5, torch.float32: 5e-4, torch.float16: 0.03, torch.bfloat16: 0.15}
GPU_FLOAT32, FLEX_FLOAT32 = 5e-3, 0.02  # FlexAttention multiplies float32 as TF32
OFFSET = 8  # some tables of positions have a few rows more
DENSE = 4096  # tokens; longer pairs would need too large a mask in the sharp comparison
COSTS: dict[Layout, str] = {
    "flash": "",
    "packed": "",
    "padded": "pairs are padded instead, and prompts computed twice, which is slower",
    "single": "each sequence goes through the model alone, which is several times slower",
}


@dataclass(frozen=True)
class Proof:
    layout: Layout
    difference: float  # the largest, in nats per response
    pairs: int
    passed_over: dict[str, str] = field(default_factory=dict)  # faster layouts, and why not


def prove(scorer: PairScorer, pairs: EncodedPairs) -> Proof:
    """Finds the fastest layout that agrees with the plain way, and has the scorer use it."""
    places = _handful(pairs)
    chosen, passed_over = pairs.select(places), dict[str, str]()
    if not chosen:
        return Proof(scorer.packing.layout, 0.0, 0)
    _check_sizes(scorer.model, pairs)
    plain = _plain(scorer, chosen)
    _check_finite(scorer, plain, places)
    candidates: Sequence[Layout] = scorer.layouts
    with _in_float32(scorer.model) as sharp, contextlib.suppress(RuntimeError):  # some models cannot compute in it
        if sharp:
            candidates = _agreeing_sharply(scorer, chosen, candidates, passed_over)
    for layout in candidates:
        difference = _difference(scorer, chosen, plain, layout, passed_over)
        if difference is not None:
            proof = Proof(layout, difference, len(chosen), passed_over)
            scorer.proven = True
            _tell(scorer, proof)
            return proof
    raise UserError(
        f"{type(scorer.model).__name__} does not give the same log-probabilities twice, so nothing can be learned "
        f"from them ({passed_over['single']})"
    )


def prove_once(scorer: PairScorer, pairs: EncodedPairs) -> None:
    """Nothing is scored or trained without proof."""
    if not scorer.proven:
        prove(scorer, pairs)


def _agreeing_sharply(
    scorer: PairScorer, pairs: Sequence[EncodedPair], layouts: Sequence[Layout], passed_over: dict[str, str]
) -> Sequence[Layout]:
    """The layouts that agree in float32 with the model's usual attention."""
    short = [pair for pair in pairs if pair.tokens <= DENSE] or [min(pairs, key=lambda pair: pair.tokens)]
    plain = _plain(scorer, short)
    agreeing: set[Layout] = {"single"}
    for layout in layouts:
        if layout in ("flash", "single"):
            continue  # FlashAttention packs too, and has no float32
        if _difference(scorer, short, plain, layout, passed_over, usual=True) is not None:
            agreeing.add(layout)
    return [layout for layout in layouts if ("packed" if layout == "flash" else layout) in agreeing]


def _difference(
    scorer: PairScorer,
    pairs: Sequence[EncodedPair],
    plain: Tensor,
    layout: Layout,
    passed_over: dict[str, str],
    *,
    usual: bool = False,
) -> float | None:
    """The largest difference, if all are within the bound; None, and why, if not."""
    try:
        if layout in ("flash", "packed") and scorer.device.type == "cuda" and _has_position_table(scorer.model):
            raise CannotPack("it looks positions up in a table")  # an index outside it would end the process
        scorer.use(layout, usual_attention=usual)
        if layout == "flash":
            _check_flash(scorer, pairs)
        differences = (_scores(scorer, pairs) - plain).abs()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a model's code may fail in any way on inputs that it was not made for
        passed_over[layout] = str(error).splitlines()[0] if str(error) else type(error).__name__
        return None
    largest = float(differences.max())
    if bool((differences <= _bound(scorer, pairs)).all()):
        return largest
    passed_over[layout] = f"log-probabilities differ by {largest:.3g} nats from the model's own"
    return None


def _check_flash(scorer: PairScorer, pairs: Sequence[EncodedPair]) -> None:
    """Tries the kernel by itself on the shortest pairs, with the model's sliding window too if it has one: in 16 bits,
    a whole model's rounding could hide a small mistake."""
    shortest = sorted(pairs, key=lambda pair: pair.tokens)[:3]
    length = sum(pair.tokens for pair in shortest)
    batch = PackedBatch.of(shortest, length, sequences=True).to(scorer.device)
    assert batch.sequences is not None
    sliding = getattr(scorer.model.config.get_text_config(), "sliding_window", None)
    for window in [None] if sliding is None else [None, max(1, min(sliding, batch.longest // 2))]:
        check_kernel(scorer.model, batch.sequences._replace(window=window), batch.dense_mask(window))


def _tell(scorer: PairScorer, proof: Proof) -> None:
    if "packed" in proof.passed_over:
        why, name = proof.passed_over["packed"], type(scorer.model).__name__
        warnings.warn(f"{name} is not packed ({why}): {COSTS[proof.layout]}", UnmdpoWarning, stacklevel=3)


def _check_sizes(model: PreTrainedModel, pairs: EncodedPairs) -> None:
    """Refuses what would read outside the model's tables, which ends a process on a GPU and is nonsense elsewhere."""
    embeddings = model.get_input_embeddings()
    largest, known = int(pairs.tokens.max(initial=0)), getattr(embeddings, "num_embeddings", None)
    if known is not None and largest >= known:
        raise UserError(
            f"the tokenizer gives token {largest}, but the model knows only {known}: use the tokenizer that came with "
            "it, or resize its embeddings (resize_token_embeddings) and train the new ones first"
        )
    most, context = int(longest(pairs.valid_lengths).max()), longest_input(model.config)
    if context is not None and most > context and _has_position_table(model):
        raise UserError(f"a pair has {most} tokens, but the model takes {context}: lower data.max_length")


def _has_position_table(model: PreTrainedModel) -> bool:
    """Whether positions are learned: an embedding with a row for each of them."""
    tokens, context = model.get_input_embeddings(), longest_input(model.config)
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding) and module is not tokens]
    return context is not None and any(abs(table.num_embeddings - context) <= OFFSET for table in tables)


def _handful(pairs: EncodedPairs) -> list[int]:
    """The two shortest valid pairs, two of middling length, and the one with the longest sequence."""
    valid = pairs.valid.nonzero()[0]
    if not len(valid):
        return []
    lengths = pairs.lengths[valid]
    order, middle = np.argsort(lengths.sum(axis=1), kind="stable"), len(valid) // 2
    last = np.argmax(longest(lengths))
    return [int(valid[place]) for place in dict.fromkeys([*order[:2], *order[middle : middle + 2], last])]


def _plain(scorer: PairScorer, pairs: Sequence[EncodedPair]) -> Tensor:
    scorer.use("single")
    return _scores(scorer, pairs)


def _check_finite(scorer: PairScorer, plain: Tensor, places: Sequence[int]) -> None:
    bad = [place for place, fine in zip(places, plain.isfinite().all(dim=1).tolist(), strict=True) if not fine]
    if bad:
        raise UserError(
            f"the log-probabilities that {type(scorer.model).__name__} gives are not finite, for example of "
            f"comparisons {bad} (counted from 0); check the model's weights"
        )


@torch.no_grad()
def _scores(scorer: PairScorer, pairs: Sequence[EncodedPair]) -> Tensor:
    """(n, 2). All pairs in one batch, or, where one does not fit beside the others, in its own."""
    was_training, budget = scorer.training, scorer.default_budget
    scorer.train(False)
    try:
        lengths = np.array([[len(p.prompt), len(p.chosen), len(p.rejected)] for p in pairs], dtype=np.int32)
        groups, scores = scorer.packing.groups(lengths, budget), torch.empty(len(pairs), 2, dtype=torch.float64)
        for members in groups.all:
            batch = scorer.prepare([pairs[i] for i in members], budget)
            scores[members] = scorer(batch.to(scorer.device)).double().cpu()
    finally:
        scorer.settle()
        scorer.train(was_training)
    return scores


def _bound(scorer: PairScorer, pairs: Sequence[EncodedPair]) -> Tensor:
    """(n, 2) how far apart two right ways of computing may be."""
    bound = BOUNDS.get(_dtype(scorer.model), BOUNDS[torch.bfloat16])
    if scorer.device.type == "cuda" and Ranks.current().world > 1:
        bound = BOUNDS[torch.bfloat16]  # float32 shards are the masters of a model that computes in bfloat16
    elif scorer.device.type == "cuda":
        bound = max(bound, FLEX_FLOAT32 if scorer.attention == "flex_attention" else GPU_FLOAT32)
    tokens = torch.tensor([[len(p.chosen), len(p.rejected)] for p in pairs])
    return bound * tokens.sqrt()


def _dtype(model: PreTrainedModel) -> torch.dtype:
    """The least precise dtype of the weights."""
    kinds = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return max(kinds, key=lambda kind: torch.finfo(kind).eps, default=torch.float32)


@contextlib.contextmanager
def _in_float32(model: PreTrainedModel) -> Iterator[bool]:
    """Weights in float32 for a moment, if they are less precise, whole, and there is room for a second copy."""
    low = {
        name: parameter.data
        for name, parameter in model.named_parameters()
        if parameter.dtype in (torch.bfloat16, torch.float16)
    }
    needed = sum(4 * weight.numel() for weight in low.values())
    fits = model.device.type != "cuda" or 1.5 * needed < torch.cuda.mem_get_info(model.device)[0]
    quantized = any(not parameter.is_floating_point() for parameter in model.parameters())
    if not low or not fits or quantized or Ranks.current().world > 1:
        yield False
        return
    parameters = dict(model.named_parameters())
    try:
        for name, weight in low.items():
            parameters[name].data = weight.float()
        yield True
    finally:
        for name, weight in low.items():
            parameters[name].data = weight
