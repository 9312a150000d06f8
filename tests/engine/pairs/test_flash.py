"""FlashAttention's way through a model, with a slow kernel in its place that runs anywhere."""

import sys

import pytest
import torch

from tests.worlds.families import build
from tests.worlds.models import PAIRS, one_by_one
from unmdpo.engine.models import decoder_layers
from unmdpo.engine.pairs import flash
from unmdpo.engine.pairs.masks import CannotPack
from unmdpo.engine.pairs.packing import PackedBatch
from unmdpo.engine.pairs.scorer import PairScorer
from unmdpo.engine.pairs.sequences import ATTENTION


def shares(q, k, queries, keys, scale, window):
    """For each sequence, its queries and keys, and (heads, queries, keys) how much each key counts."""
    for i in range(len(queries) - 1):
        (start, end), (first, last) = queries[i : i + 2].tolist(), keys[i : i + 2].tolist()
        place, seen = torch.arange(end - start)[:, None] + (last - first) - (end - start), torch.arange(last - first)
        hidden = (seen > place) | ((window >= 0) & (seen <= place - window))
        scores = scale * torch.einsum("qhd,khd->hqk", q[start:end], k[first:last])
        yield slice(start, end), slice(first, last), scores.masked_fill(hidden, -torch.inf).softmax(-1)


@pytest.fixture(autouse=True, scope="module")
def slow_kernels():
    def forward(q, k, v, queries, keys, longest, scale, window):
        assert keys.diff().max() <= longest
        groups, made = q.shape[1] // k.shape[1], torch.empty_like(q)
        k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
        for own, others, share in shares(q, k, queries, keys, scale, window):
            made[own] = torch.einsum("hqk,khd->qhd", share, v[others])
        return made, q.new_zeros(q.shape[1], len(q))

    def backward(gradient, q, k, v, made, normalizer, queries, keys, longest, scale, window):
        groups, shape = q.shape[1] // k.shape[1], k.shape
        k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
        by_q, by_k, by_v = (torch.zeros_like(part) for part in (q, k, v))
        for own, others, share in shares(q, k, queries, keys, scale, window):
            by_v[others] = torch.einsum("hqk,qhd->khd", share, gradient[own])
            by_share = torch.einsum("qhd,khd->hqk", gradient[own], v[others])
            by_score = scale * share * (by_share - (share * by_share).sum(-1, keepdim=True))
            by_q[own] = torch.einsum("hqk,khd->qhd", by_score, k[others])
            by_k[others] = torch.einsum("hqk,qhd->khd", by_score, q[own])
        return by_q, *(part.unflatten(1, (shape[1], groups)).sum(2) for part in (by_k, by_v))

    flash.flash.register_kernel("cpu")(forward)
    flash.flash_backward.register_kernel("cpu")(backward)


def scorer_of(name):
    scorer = PairScorer(build(name, attention=None))
    scorer.model.set_attn_implementation(ATTENTION)
    return scorer


def batch_of(pairs, length):
    return PackedBatch.of(pairs, length, sequences=True)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gemma3_text", "phi3", "olmo2", "granite, scaled"])
def test_the_same_log_probabilities_as_one_by_one(name):
    expected = one_by_one(build(name, attention="eager"), PAIRS)
    with torch.no_grad():
        found = scorer_of(name)(batch_of(PAIRS, 128))
    assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_attention_with_more_to_it_is_refused(name):
    with pytest.raises(CannotPack, match="its attention has a"):
        scorer_of(name)(batch_of(PAIRS, 128))


@pytest.mark.filterwarnings("ignore")  # compilers warn about themselves
def test_one_compilation_takes_any_length():
    plain, compiled, traced = scorer_of("mistral"), scorer_of("mistral"), []

    def backend(graph, inputs):
        traced.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    for layer in decoder_layers(compiled.model):
        layer.compile(fullgraph=True, dynamic=True, backend=backend)
    for pairs, length in ((PAIRS, 128), (PAIRS[:2], 64), (PAIRS[1:], 96)):
        results = []
        for scorer in (plain, compiled):
            scorer.zero_grad()
            scorer.train()(batch_of(pairs, length)).sum().backward()
            results.append([p.grad.clone() for p in scorer.parameters()])
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*results, strict=True))
    assert len(traced) <= 2  # the first layer's input needs no gradient of its own


def test_a_kernel_that_is_wrong_is_found_out():
    scorer, batch = scorer_of("llama"), batch_of(PAIRS, sum(pair.tokens for pair in PAIRS))
    with pytest.raises(CannotPack, match="off by"):
        flash.check_kernel(scorer.model, batch.sequences._replace(window=3), batch.dense_mask(4))
    flash.check_kernel(scorer.model, batch.sequences._replace(window=3), batch.dense_mask(3))
    flash.check_kernel(scorer.model, batch.sequences, batch.dense_mask())


def test_version_4_without_its_own_libraries_counts_as_none(tmp_path, monkeypatch):
    package = tmp_path / "flash_attn" / "cute"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import a_library_that_is_missing\n")
    (package / "interface.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
        monkeypatch.delitem(sys.modules, name)
    for cached in (flash.installed, flash._kernels):
        monkeypatch.setattr(flash, cached.__name__, cached.__wrapped__)
    assert not flash.installed()
