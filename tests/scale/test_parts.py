"""The parts of a scale: sketches, standardization, pair features, heads, maps, losses."""

import hashlib
import math
import re
import unittest.mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from unmdpo.core.errors import UserError
from unmdpo.core.margins import StrengthMap
from unmdpo.scale import Rows, Units, maps
from unmdpo.scale.entropy import entropy_targets
from unmdpo.scale.features import Standardizer, count_sketch, pair_features
from unmdpo.scale.fitting import residual_loss
from unmdpo.scale.maps import ScaleHead

# --- Features -------------------------------------------------------------------------------------


def slow_sketch(vector, buckets=64, prefix="pair-prompt-v1:"):
    sums = [0.0] * buckets
    for j, value in enumerate(vector):
        digest = hashlib.sha256(f"{prefix}{j}".encode()).digest()
        bucket = (digest[0] << 24 | digest[1] << 16 | digest[2] << 8 | digest[3]) % buckets
        sums[bucket] += value if digest[4] % 2 == 1 else -value
    return [total / math.sqrt(max(1, len(vector) / buckets)) for total in sums]


@pytest.mark.parametrize("dimension", [10, 64, 2048])
def test_count_sketch_is_the_documented_hash(dimension):
    vectors = torch.randn(3, dimension, generator=torch.Generator().manual_seed(0))
    sketched = count_sketch(vectors)
    assert sketched.dtype == torch.float32
    for row, vector in zip(sketched.tolist(), vectors.tolist(), strict=True):
        assert row == pytest.approx(slow_sketch(vector), abs=1e-5)


def test_count_sketch_takes_bfloat16_and_other_sizes():
    vectors = torch.randn(3, 100).bfloat16()
    assert count_sketch(vectors).dtype == torch.float32
    assert count_sketch(vectors, buckets=16)[0].tolist() == pytest.approx(
        slow_sketch(vectors[0].tolist(), 16), abs=1e-5
    )


def test_standardizer_against_scikit_learn():
    values = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)) * 3 + 1
    ours = Standardizer.fit(values)
    theirs = StandardScaler().fit(values.numpy())
    assert np.allclose(ours(values), theirs.transform(values.numpy()), atol=1e-5)


def test_standardizer_floor_and_frozen_statistics():
    constant = torch.full((5, 1), 7.0)
    fitted = Standardizer.fit(constant)
    assert fitted.deviation.item() == pytest.approx(1e-6)
    assert fitted(constant).abs().max() == 0
    assert fitted(torch.tensor([[8.0]])).item() == pytest.approx(1e6)  # new data, old statistics


def test_row_weights_count_each_unit_as_often_as_it_occurs():
    values = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    counts = torch.tensor([1, 5, 0, 2])
    weighted, repeated = (Standardizer.fit(values, counts), Standardizer.fit(values.repeat_interleave(counts, 0)))
    assert torch.allclose(weighted.mean, repeated.mean)
    assert torch.allclose(weighted.deviation, repeated.deviation)


# --- Pair features --------------------------------------------------------------------------------


def slow_vector(text):
    vector = np.zeros(64)
    words = [word.lower() for word in re.findall(r"\w+", text)]
    for word in words:
        digest = hashlib.sha256(f"pair-response-v1:{word}".encode()).digest()
        vector[int.from_bytes(digest[:4], "big") % 64] += 1 if digest[4] & 1 else -1
    norm = np.linalg.norm(vector)
    return vector / norm if norm else vector, words


def slow_pair(prompt, one, two):
    (a, words_a), (b, words_b) = slow_vector(one), slow_vector(two)
    union = set(words_a) | set(words_b)
    lengths = np.log1p(len(words_a)), np.log1p(len(words_b))
    return np.concatenate(
        [
            prompt, a + b, abs(a - b), a * b, prompt * (a + b), prompt * abs(a - b),
            [sum(lengths), abs(lengths[0] - lengths[1]), a @ b,
             len(set(words_a) & set(words_b)) / len(union) if union else 0.0],
        ]
    )  # fmt: skip


TEXTS = st.text(alphabet="abc ABC,.éİ1_\n", max_size=30)


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5))
def test_pair_features_against_a_slow_twin_and_symmetric(texts):
    first, second = zip(*texts, strict=True)
    prompts = torch.randn(len(texts), 64, generator=torch.Generator().manual_seed(1))
    features = pair_features(prompts, first, second)
    assert features.shape == (len(texts), 388)
    for i, (one, two) in enumerate(texts):
        assert features[i].numpy() == pytest.approx(slow_pair(prompts[i].numpy(), one, two), abs=1e-5)
    assert torch.equal(features, pair_features(prompts, second, first))


def test_pair_features_by_hand():
    same = pair_features(torch.zeros(1, 64), ["One two"], ["two ONE"])[0]
    assert same[384].item() == pytest.approx(2 * math.log(3))  # two words each, log(1 + 2)
    assert same[385].item() == 0
    assert same[386].item() == pytest.approx(1)  # cosine: word order and case do not matter
    assert same[387].item() == 1  # overlap
    assert same[128:192].abs().max() == 0  # no difference
    with pytest.raises(ValueError, match="prompt sketches"):
        pair_features(torch.zeros(2, 64), ["a"], ["b"])


# --- Head -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["gelu", "tanh"])
def test_head_starts_at_zero_and_is_seeded(activation):
    features, domains = torch.randn(5, 8), torch.tensor([0, 1, 2, -1, 99])
    head = ScaleHead(8, 3, seed=42, activation=activation)
    assert head(features, domains).tolist() == [0.0] * 5
    assert torch.equal(head.hidden.weight, ScaleHead(8, 3, seed=42).hidden.weight)
    assert not torch.equal(head.hidden.weight, ScaleHead(8, 3, seed=43).hidden.weight)
    torch.manual_seed(42)
    assert torch.equal(head.hidden.weight, torch.nn.Linear(8, 16).weight)  # PyTorch's initial weights
    before = torch.get_rng_state()
    with unittest.mock.patch("torch.manual_seed") as seeded:  # it would seed every GPU as well
        ScaleHead(8, 3, seed=7)
    assert not seeded.called
    assert torch.equal(before, torch.get_rng_state())  # the caller's randomness is not touched


def test_head_by_hand():
    head = ScaleHead(1, 2, seed=0)
    with torch.no_grad():
        head.hidden.weight.fill_(1.0)
        head.hidden.bias.zero_()
        head.output.weight.fill_(0.5)
        head.domain.copy_(torch.tensor([0.25, -1.0]))
    gelu = 0.5 * 2.0 * (1 + math.erf(2.0 / math.sqrt(2)))  # exact GELU at 2
    out = head(torch.tensor([[2.0]] * 3), torch.tensor([0, 1, -1]))
    assert out.tolist() == pytest.approx([8 * gelu + 0.25, 8 * gelu - 1, 8 * gelu], rel=1e-6)


# --- Maps -----------------------------------------------------------------------------------------

RAW = st.lists(st.floats(-50, 50), min_size=1, max_size=8)


def test_centered_map_by_hand():
    b = math.log(2) / 2
    raw = [0.3, -0.1, 0.4]
    mean = sum(raw) / 3
    u = [b * math.tanh((a - mean) / b) for a in raw]
    expected = [value - sum(u) / 3 for value in u]
    tensor = torch.tensor(raw, dtype=torch.float64)
    assert maps.centered(tensor, maps.center_of(tensor)).tolist() == pytest.approx(expected, abs=1e-12)


@given(RAW)
def test_centered_map_bounds_and_geometric_mean(values):
    raw = torch.tensor(values, dtype=torch.float64)
    log_q = maps.centered(raw, maps.center_of(raw))
    assert log_q.mean().item() == pytest.approx(0, abs=1e-12)
    assert log_q.abs().max() <= math.log(2) + 1e-12
    assert log_q.max() - log_q.min() <= math.log(2) + 1e-12  # two prompts never differ by more than a factor of 2


@given(RAW, RAW)
def test_bounds_hold_for_new_prompts_with_frozen_means(fit, new):
    center = maps.center_of(torch.tensor(fit, dtype=torch.float64))
    log_q = maps.centered(torch.tensor(new, dtype=torch.float64), center)
    assert log_q.abs().max() <= math.log(2) + 1e-12


@given(RAW, st.floats(-5, 5))
def test_other_maps_are_bounded(values, center):
    raw = torch.tensor(values, dtype=torch.float64)
    for log_q in (maps.uncentered(raw), maps.saturating(raw), maps.moving(raw, torch.tensor(center))):
        assert log_q.abs().max() <= math.log(2) + 1e-12


def test_maps_by_hand_and_at_the_start():
    zero = torch.zeros(3)
    assert maps.centered(zero, maps.center_of(zero)).exp().tolist() == [1, 1, 1]
    assert maps.uncentered(zero).exp().tolist() == [1, 1, 1]
    assert maps.moving(zero, torch.zeros(())).exp().tolist() == [1, 1, 1]
    assert maps.saturating(torch.full((3,), maps.SIGMOID_START)).exp().tolist() == [1, 1, 1]
    assert maps.saturating(torch.tensor(0.0)).exp().item() == pytest.approx(1.25)
    assert maps.uncentered(torch.tensor(0.5)).item() == pytest.approx(math.log(2) * math.tanh(0.5 / math.log(2)))
    assert maps.moving(torch.tensor(0.5), torch.tensor(0.2)).item() == pytest.approx(math.log(2) * math.tanh(0.3))


def test_gradient_goes_through_both_means():
    raw = torch.randn(6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: maps.centered(a, maps.center_of(a)), (raw,))
    shifted = maps.centered(raw, maps.center_of(raw))
    shifted.pow(2).sum().backward()
    assert raw.grad.sum().item() == pytest.approx(0, abs=1e-12)  # a common shift changes nothing


def test_row_weighted_center():
    raw = torch.tensor([0.1, 0.5, -0.3])
    counts = torch.tensor([1, 4, 2])
    repeated = raw.repeat_interleave(counts)
    weighted, plain = maps.center_of(raw, counts), maps.center_of(repeated)
    assert weighted.raw.item() == pytest.approx(plain.raw.item(), abs=1e-6)
    assert weighted.bounded.item() == pytest.approx(plain.bounded.item(), abs=1e-6)


# --- Losses and targets ---------------------------------------------------------------------------


@given(st.lists(st.floats(-6, 6), min_size=1, max_size=5), st.floats(-0.6, 0.6))
def test_scale_gradient_identity(residuals, log_scale):
    """∂ζ(−d/q)/∂log q = (d/q)·σ(−d/q) (Eq. scale-residual-gradient), averaged over rows."""
    d = torch.tensor(residuals, dtype=torch.float64)
    log_q = torch.full((len(d),), log_scale, dtype=torch.float64, requires_grad=True)
    rows = Rows(torch.arange(len(d)), d + 2.0, torch.full((len(d),), 2.0))
    residual_loss(log_q, rows, "wr", torch.full_like(d, 2.0)).backward()
    scaled = d / math.exp(log_scale)
    assert torch.allclose(log_q.grad, scaled * torch.sigmoid(-scaled) / len(d), atol=1e-12)


def test_residual_losses_by_hand():
    rows = Rows(torch.tensor([0, 0, 1]), torch.tensor([1.0, -2.0, 0.5]), torch.tensor([1.0, 2.0, 3.0]))
    log_q = torch.log(torch.tensor([2.0, 0.5]))

    def zeta(x):
        return math.log1p(math.exp(x))

    wr = (zeta((1 - 1) / 2) + zeta((2 + 2) / 2) + zeta((3 - 0.5) / 0.5)) / 3
    ao = (zeta(1 - 1 / 2) + zeta(2 + 2 / 2) + zeta(3 - 0.5 / 0.5)) / 3
    assert residual_loss(log_q, rows, "wr", rows.strength).item() == pytest.approx(wr, rel=1e-6)
    assert residual_loss(log_q, rows, "ao", rows.strength).item() == pytest.approx(ao, rel=1e-6)


def test_entropy_targets_by_hand():
    unanimous = torch.tensor([[0, 0, 0, 0, 0, 3]])
    p = [3.5 / 6] + [0.5 / 6] * 5
    by_hand = math.log(2) / math.log(6) * -sum(x * math.log(x) for x in p)
    assert entropy_targets(unanimous).item() == pytest.approx(by_hand)
    spread_out = torch.tensor([[1, 1, 1, 1, 1, 1]])
    assert entropy_targets(spread_out).item() == pytest.approx(math.log(2))  # the largest possible value
    near, far = torch.tensor([[0, 0, 0, 2, 1, 0]]), torch.tensor([[2, 0, 0, 0, 0, 1]])
    assert entropy_targets(near).item() == pytest.approx(entropy_targets(far).item())  # dispersion, not distance


def test_inputs_are_checked():
    with pytest.raises(ValueError, match="finite"):
        Units(torch.tensor([[float("nan")]]))
    with pytest.raises(ValueError, match="one entry per unit"):
        Units(torch.zeros(2, 3), domains=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="finite evidence"):
        Rows(torch.tensor([0]), torch.tensor([float("inf")]), torch.ones(1))
    with pytest.raises(ValueError, match="at least one valid row"):
        Rows(torch.tensor([0]), torch.zeros(1), torch.ones(1), valid=torch.tensor([False]))
    one = {"unit": torch.tensor([0]), "evidence": torch.zeros(1), "strength": torch.ones(1)}
    for change, message in (
        ({"evidence": torch.zeros(1, 1)}, r"evidence has shape \(1, 1\)"),
        ({"strength": torch.ones(2)}, r"strength has shape \(2,\)"),
        ({"strength": torch.tensor([torch.nan])}, "finite evidence and strength"),
        ({"unit": torch.tensor([-1])}, "numbered from 0"),
        ({"valid": torch.tensor([1])}, "should be a boolean"),
        ({"votes": torch.ones(1, 5)}, r"votes should be \(1, 6\)"),
    ):
        with pytest.raises(ValueError, match=message):
            Rows(**(one | change))
    with pytest.raises(ValueError, match="folds are numbered"):
        Units(torch.zeros(2, 3), folds=torch.tensor([0, -1]))


def test_strength_map_of_tensors():
    m = StrengthMap((1.0, 4.0, 9.0))
    assert m.of(torch.tensor([3.0, 1.0, 2.0])).tolist() == [9.0, 1.0, 4.0]
    for bad in (0.0, -1.0, 4.0, 3.001):
        with pytest.raises(UserError, match=rf"strength {bad:g} is outside the map's 3 levels"):
            m.of(torch.tensor([1.0, bad]))
        with pytest.raises(UserError, match="outside the map's 3 levels"):
            m(bad)
    assert StrengthMap().of(torch.tensor([2.5])).tolist() == [2.5]


def test_a_strength_between_levels_has_a_margin_between_theirs():
    m = StrengthMap((1.0, 4.0, 9.0))
    real = torch.tensor([0.25, 1.0, 1.5, 2.2, 3.0], dtype=torch.float64)
    assert m.of(real).tolist() == pytest.approx([0.25, 1.0, 2.5, 5.0, 9.0])
    assert [m(k) for k in real.tolist()] == pytest.approx(m.of(real).tolist())
