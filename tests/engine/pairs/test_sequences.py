"""Pairs as sequences: the same attention as with a mask, and the same gradients."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from tests.worlds.models import pair
from unmdpo.engine.pairs.layout import Packing
from unmdpo.engine.pairs.packing import PackedBatch
from unmdpo.engine.pairs.sequences import repeated

HEADS, KEY_HEADS, WIDTH = 4, 2, 8


def one_by_one(q, k, v, sequences):
    """Attention as the kernel is asked for it: each sequence alone, its queries at the end of its keys."""
    parts, window = [], sequences.window or len(q) * 2
    for i in range(len(sequences.queries) - 1):
        start, end = sequences.queries[i : i + 2].tolist()
        first, last = sequences.keys[i : i + 2].tolist()
        place = torch.arange(end - start)[:, None] + (last - first) - (end - start)
        seen = torch.arange(last - first)[None]
        mask = (seen <= place) & (seen > place - window)
        queries, keys, values = (part.transpose(0, 1) for part in (q[start:end], k[first:last], v[first:last]))
        parts.append(scaled_dot_product_attention(queries, keys, values, mask, enable_gqa=True).transpose(0, 1))
    return torch.cat(parts)


def drawn(length, heads, seed):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(length, heads, WIDTH, generator=rng, dtype=torch.float64).requires_grad_()


sizes = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=5)


@given(sizes, st.sampled_from([1, 8]), st.integers(0, 300), st.sampled_from([None, 1, 7]))
def test_sequences_see_what_the_mask_shows(sizes, align, padding, window):
    pairs = [pair(*size, number) for number, size in enumerate(sizes)]
    length = sum(-(-sum(size) // align) * align for size in sizes) + padding
    batch = PackedBatch.of(pairs, length, align=align, sequences=True)
    q, k, v = drawn(length, HEADS, 0), drawn(length, KEY_HEADS, 1), drawn(length, KEY_HEADS, 2)
    sequences = batch.sequences._replace(window=window)
    found = one_by_one(q, repeated(k, sequences), repeated(v, sequences), sequences)
    mask = batch.dense_mask(window)
    expected = scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in (q, k, v)), mask, enable_gqa=True)
    expected = expected[0].transpose(0, 1)
    real = batch.real
    assert torch.allclose(found[real], expected[real])
    weights = drawn(length, HEADS, 3).detach() * real[:, None, None]
    ours, theirs = (torch.autograd.grad((made * weights).sum(), (q, k, v)) for made in (found, expected))
    for mine, right in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, right, atol=1e-6)  # gradients are added in float32


def test_prompts_alone_are_one_sequence_each():
    batch = PackedBatch.of([pair(5, 0, 0, 1), pair(3, 0, 0, 2)], 8, sequences=True)
    assert batch.sequences.queries[:5].tolist() == [0, 5, 5, 8, 8]
    assert batch.sequences.keys[:5].tolist() == [0, 5, 5, 8, 8]
    assert (batch.sequences.second == -1).all()


def test_layouts_for_flash_waste_almost_nothing():
    packing = Packing("flash", fixed=True)
    lengths = np.array([(100, 50, 60), (30, 300, 20), (7, 8, 9)] * 20, dtype=np.int32)
    groups = packing.groups(lengths, 4096)
    batches = [packing.batch([pair(*lengths[i].tolist()) for i in members], 4096) for members in groups.all]
    assert all(batch.tokens.shape[1] % 128 == 0 and batch.sequences is not None for batch in batches)
    assert packing.fill(lengths, groups, 4096) == lengths.sum() / sum(batch.tokens.numel() for batch in batches) > 0.97
