"""Packed, unpacked and one-by-one scoring agree for every kind of decoder, gradients included."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from tests.worlds.models import MODELS, PAIRS, one_by_one, pair, tiny
from unmdpo.engine.pairs import logprobs
from unmdpo.engine.pairs.head import Head
from unmdpo.engine.pairs.logprobs import CHUNK, token_log_probs
from unmdpo.engine.pairs.masks import CannotPack, block_mask, window_of
from unmdpo.engine.pairs.packing import PackedBatch, balanced, first_fit, padded_length
from unmdpo.engine.pairs.padding import PaddedBatch, SingleBatch
from unmdpo.engine.pairs.score import Kept, score
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.text.encoded import EncodedPair, EncodedPairs

SOFT_CAPPED = "gemma2, soft-capped, sliding"  # Transformers supports it only with eager or flex attention


@pytest.mark.parametrize(
    ("name", "attention"),
    [(name, "eager") for name in MODELS] + [(name, "sdpa") for name in MODELS if name != SOFT_CAPPED],
)
def test_packed_equals_one_by_one(name, attention):
    model = tiny(name, attention)
    with torch.no_grad():
        expected = one_by_one(model, PAIRS)
        packed = PairScorer(model)(PackedBatch.of(PAIRS, length=80))
        apart = PairScorer(model)(PackedBatch.of(PAIRS, length=100, align=10))
        alone = torch.cat([PairScorer(model)(PackedBatch.of([p], p.tokens)) for p in PAIRS])
    assert packed.shape == (4, 2)
    assert torch.allclose(packed, expected, atol=1e-9)
    assert torch.allclose(apart, expected, atol=1e-9)
    assert torch.allclose(alone, expected, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_equal_one_by_one(name):
    weights = torch.tensor([[1.0, -0.5], [0.3, 2.0], [-1.0, 0.7], [0.1, 0.1]], dtype=torch.float64)
    slow, fast = tiny(name), tiny(name)
    (weights * one_by_one(slow, PAIRS)).sum().backward()
    (weights * PairScorer(fast)(PackedBatch.of(PAIRS, 80))).sum().backward()
    for (key, a), (_, b) in zip(slow.named_parameters(), fast.named_parameters(), strict=True):
        # norms and softmax are float32 inside these models, whatever the dtype of their weights
        assert (a.grad - b.grad).norm() <= 1e-5 * max(1.0, a.grad.norm()), key


def test_float32_and_order_and_padding():
    model = tiny("llama, tied", "sdpa", torch.float32)
    with torch.no_grad():
        wide = PairScorer(model)(PackedBatch.of(PAIRS, 64))
        wider = PairScorer(model)(PackedBatch.of(PAIRS, 200))
        turned = PairScorer(model)(PackedBatch.of(PAIRS[::-1], 64)).flip(0)
    assert wide.dtype == torch.float32
    assert torch.allclose(wide, wider, atol=1e-4)
    assert torch.allclose(wide, turned, atol=1e-4)


def test_a_policy_that_equals_its_reference_has_log_ratio_zero():
    policy = tiny("llama, tied", "sdpa", torch.float32)
    reference = copy.deepcopy(policy)
    batch = PackedBatch.of(PAIRS, 64)
    with torch.no_grad():
        difference = PairScorer(policy)(batch) - PairScorer(reference)(batch)
    assert torch.equal(difference, torch.zeros(4, 2))


# --- Layout ---------------------------------------------------------------------------------------


def test_layout_by_hand():
    batch = PackedBatch.of([pair(2, 3, 1)], length=8, pad_token=9)
    assert batch.positions[0].tolist() == [0, 1, 2, 3, 4, 2, 0, 0]
    assert [run.tolist() for run in batch.runs] == [
        [0, 0, 0, 0, 0, 5, 6, 7],  # padding sees itself
        [0] * 8,
        [0, 0, 0, 0, 0, 2, 0, 0],
    ]
    assert batch.tokens[0, 6:].tolist() == [9, 9]
    assert batch.predictor.tolist() == [1, 2, 3, 1]  # the prompt's last token predicts both responses' first tokens
    assert batch.response.tolist() == [0, 0, 0, 1]
    mask = batch.dense_mask()[0, 0].int().tolist()
    assert mask[4] == [1, 1, 1, 1, 1, 0, 0, 0]
    assert mask[5] == [1, 1, 0, 0, 0, 1, 0, 0]  # rejected sees the prompt and itself, not chosen
    assert mask[7] == [0, 0, 0, 0, 0, 0, 0, 1]  # padding sees itself


@pytest.mark.parametrize("window", [None, 100])
def test_block_masks_are_pytorchs_own(window):
    """Checked against `create_block_mask`, which evaluates the mask for every pair of tokens."""
    from torch.nn.attention.flex_attention import create_block_mask

    batch = PackedBatch.of([pair(200, 300, 150), pair(1, 260, 2), pair(40, 1, 30)], 1280)
    found = block_mask(batch, window)
    sees = batch.runs_within(window).see
    theirs = create_block_mask(lambda b, h, q, k: sees(q, k), None, None, 1280, 1280, device="cpu")
    assert found.seq_lengths == theirs.seq_lengths
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(found, name), getattr(theirs, name)), name
    for kind in ("", "full_"):
        counts = getattr(theirs, f"{kind}kv_num_blocks")[0, 0].tolist()
        ours, expected = (getattr(mask, f"{kind}kv_indices")[0, 0] for mask in (found, theirs))
        for row, count in enumerate(counts):
            assert torch.equal(ours[row, :count], expected[row, :count])
    assert torch.equal(found.to_dense(), theirs.to_dense())
    assert window or theirs.full_kv_num_blocks.sum() > 0


def test_pairs_do_not_see_each_other():
    batch = PackedBatch.of([pair(2, 2, 2), pair(3, 1, 1)], length=12)
    mask = batch.dense_mask()[0, 0]
    assert not mask[6:11, :6].any()
    assert not mask[:6, 6:11].any()


def test_a_full_budget_and_one_too_many():
    exact = pair(2, 2, 2)
    assert PackedBatch.of([exact], 6).tokens.shape == (1, 6)
    with pytest.raises(ValueError, match="exceed the budget"):
        PackedBatch.of([exact, pair(1, 1, 1)], 8)


def test_padded_lengths_take_few_values():
    lengths = (1, 256, 257, 1000, 1024)
    assert [padded_length(n, 1024, fixed=True) for n in lengths] == [256, 256, 512, 1024, 1024]
    assert padded_length(1, 1000, fixed=True) == 256  # whole blocks
    assert padded_length(17, 1024, fixed=False) == 17
    assert padded_length(1100, 1024, fixed=True) == 1280  # a pair longer than the budget gets a bin to itself


def test_first_fit():
    assert first_fit([5, 3, 4, 2], budget=7) == [[0, 3], [1, 2]]
    assert first_fit([], 10) == []
    with pytest.raises(ValueError, match="does not fit"):
        first_fit([11], 10)
    lengths = [(7 * i) % 90 + 10 for i in range(200)]
    bins = first_fit(lengths, 256)
    assert sorted(i for members in bins for i in members) == list(range(200))
    assert all(sum(lengths[i] for i in members) <= 256 for members in bins)
    assert len(bins) <= 1.1 * sum(lengths) / 256 + 1


# --- Chunked log-probabilities --------------------------------------------------------------------


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("tokens", [1, 7, CHUNK + 3])
def test_chunked_log_probs_equal_plain_ones(tokens, softcap):
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, 6, generator=rng, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 6, generator=rng, dtype=torch.float64, requires_grad=True)
    target = torch.randint(11, (tokens,), generator=rng)
    upstream = torch.randn(tokens, generator=rng, dtype=torch.float64)
    logits = hidden @ weight.T
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    plain = logits.log_softmax(-1).gather(1, target[:, None]).squeeze(1)
    expected = torch.autograd.grad((upstream * plain).sum(), (hidden, weight))
    chunked = token_log_probs(hidden, weight, target, softcap)
    found = torch.autograd.grad((upstream * chunked).sum(), (hidden, weight))
    assert torch.allclose(chunked, plain, atol=1e-12)
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-10)


def test_log_probs_are_float32_for_bfloat16_and_finite_for_none():
    hidden, weight = torch.randn(5, 8).bfloat16(), torch.randn(12, 8).bfloat16()
    assert token_log_probs(hidden, weight, torch.arange(5)).dtype == torch.float32
    assert token_log_probs(hidden[:0], weight, torch.arange(0)).shape == (0,)


def test_frozen_heads_cost_no_gradient():
    hidden = torch.randn(4, 8, requires_grad=True)
    weight = torch.randn(12, 8)
    token_log_probs(hidden, weight, torch.arange(4)).sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None


def plain_first_fit(lengths, budget):
    """Slow and obvious: looks at every bin."""
    bins, room = [], []
    for item in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        place = next((b for b, left in enumerate(room) if left >= lengths[item]), None)
        if place is None:
            bins.append([])
            room.append(budget)
            place = len(bins) - 1
        bins[place].append(item)
        room[place] -= lengths[item]
    return [sorted(members) for members in bins]


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(50, 90))
def test_bins_are_those_of_the_slow_way(lengths, budget):
    assert first_fit(lengths, budget) == plain_first_fit(lengths, budget)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(50, 90), st.integers(2, 5))
def test_ranks_get_equal_loads(lengths, budget, ranks):
    bins = balanced(lengths, budget, ranks)
    assert sorted(i for members in bins for i in members) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in members) <= budget for members in bins)
    tight = first_fit(lengths, budget)
    if bins != tight:
        assert len(bins) == min(-(-len(tight) // ranks) * ranks, len(lengths))
        loads = [sum(lengths[i] for i in members) for members in bins]
        assert max(loads) - min(loads) <= max(lengths)


@pytest.mark.parametrize(
    ("rule", "window"),
    [
        (causal_mask_function, None),
        (sliding_window_causal_mask_function(7), 7),
        (sliding_window_causal_mask_function(100), None),
        (chunked_causal_mask_function(100, torch.zeros(1, dtype=torch.long)), None),
    ],
)
def test_a_rules_window_is_found(rule, window):
    assert window_of(rule, 60) == window
    assert window_of(rule, 1) is None


@pytest.mark.parametrize(
    "rule", [chunked_causal_mask_function(16, torch.zeros(1, dtype=torch.long)), bidirectional_mask_function]
)
def test_other_rules_cannot_be_packed_in_blocks(rule):
    with pytest.raises(CannotPack, match="neither causal nor a sliding window"):
        window_of(rule, 60)


@pytest.mark.parametrize("layout", [lambda pairs: PackedBatch.of(pairs, 120), PaddedBatch.of, SingleBatch.of])
def test_a_response_against_itself_differs_by_nothing(layout):
    """The paper's convention for self-comparisons, of which its data has one."""
    other = pair(9, 30, 11, 7)
    itself = EncodedPair(other.prompt, other.chosen, other.chosen.copy(), True)
    model = tiny("llama, tied", "sdpa", torch.float32)
    logs = PairScorer(model)(layout([PAIRS[0], itself, PAIRS[3]]))
    assert logs[1, 0] == logs[1, 1]
    assert (logs[[0, 2], 0] != logs[[0, 2], 1]).all()
    (gradient, *_) = torch.autograd.grad(logs[1, 0] - logs[1, 1], list(model.parameters()))
    assert not gradient.any()


@pytest.mark.parametrize("room", [0, 2**28])
def test_gradients_of_a_head_with_bias_over_several_chunks(room, monkeypatch):
    """Logits kept for the backward pass, and made again."""
    monkeypatch.setattr(logprobs, "CHUNK", 4)
    monkeypatch.setattr(logprobs, "ROOM", room)
    rng = torch.Generator().manual_seed(0)
    shapes = ((11, 6), (9, 6), (9,))
    inputs = [torch.randn(*shape, generator=rng, dtype=torch.float64, requires_grad=True) for shape in shapes]
    hidden, weight, bias = inputs
    target, upstream = torch.randint(9, (11,), generator=rng), torch.randn(11, generator=rng, dtype=torch.float64)
    plain = (hidden @ weight.T + bias).log_softmax(-1).gather(1, target[:, None]).squeeze(1)
    expected = torch.autograd.grad((upstream * plain).sum(), inputs)
    found = torch.autograd.grad((upstream * token_log_probs(hidden, weight, target, None, bias)).sum(), inputs)
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-10)


def test_a_head_scales_its_bias_too():
    torch.manual_seed(0)
    layer, hidden = torch.nn.Linear(6, 9), torch.randn(5, 6)
    expected = (0.5 * layer(hidden)).log_softmax(-1)[torch.arange(5), torch.arange(5)]
    assert torch.allclose(Head(scale=0.5).log_probs(layer, hidden, torch.arange(5)), expected, atol=1e-5)


def test_what_was_scored_before_a_stop_is_not_scored_again(monkeypatch):
    scorer, pairs, parts = PairScorer(tiny("llama, tied", dtype=torch.float32)), EncodedPairs.of(PAIRS), []
    scorer.proven = True
    whole = score(scorer, pairs, 16)
    forward, seen = PairScorer.forward, []

    def stopped(self, batch):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(batch)
        return forward(self, batch)

    def counted(self, batch):
        seen.append(batch)
        return forward(self, batch)

    monkeypatch.setattr(PairScorer, "forward", counted)
    score(scorer, pairs, 16)
    batches = len(seen)
    seen.clear()
    monkeypatch.setattr(PairScorer, "forward", stopped)
    with pytest.raises(KeyboardInterrupt):
        score(scorer, pairs, 16, kept=Kept((), parts.append))
    assert sum(len(part.places) for part in parts) > 0

    seen.clear()
    monkeypatch.setattr(PairScorer, "forward", counted)
    again = score(scorer, pairs, 16, kept=Kept(parts, parts.append))
    assert torch.equal(again.nan_to_num(7), whole.nan_to_num(7))
    assert len(seen) == batches - 2 > 0
    assert sorted(place for part in parts for place in part.places.tolist()) == pairs.valid.nonzero()[0].tolist()


def test_scores_are_made_in_evaluation_mode():
    class Watched(PairScorer):
        def forward(self, batch):
            modes.append((self.training, self.model.training))
            return super().forward(batch)

    modes, scorer = [], Watched(tiny("llama, tied", dtype=torch.float32))
    scorer.proven = True
    scorer.train()
    score(scorer, EncodedPairs.of(PAIRS), 64)
    assert {*modes} == {(False, False)}
    assert scorer.training
