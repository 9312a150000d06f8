"""Is a scale real? By hand, against plain loops, and in worlds where it is known."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from tests.worlds.scales import world
from unmdpo.scale import FrozenScale, Rows, Units, make_estimator
from unmdpo.scale.check import (
    Beyond,
    Check,
    Gain,
    OwnGain,
    check,
    exchanged_gain,
    gain_of,
    out_of_fold_log_scales,
    rank_correlation,
    verdict,
)
from unmdpo.scale.fitting import losses_by
from unmdpo.scale.settings import MarginSettings

LOSSES = losses_by(MarginSettings())


def pooled():
    return make_estimator("pooled", {"updates": 60})


class Known(FrozenScale):
    """Knows log q: the second feature."""

    name = "pooled"

    def fit(self, units, rows):
        self.q_ = self.predict(units)
        return self

    def predict(self, units):
        return units.features[:, 1].exp()

    tensors = restore = None


Known.__abstractmethods__ = frozenset()


def test_losses_and_gain_by_hand(monkeypatch):
    monkeypatch.setattr("unmdpo.scale.check.FEWEST", 2)
    log_q = torch.tensor([0.5, -0.5, 0.3, -0.3, 0.2, -0.2])  # nobody compared the last two
    units = Units(torch.stack([torch.zeros(6), log_q], dim=1), None, torch.tensor([0, 0, 1, 1, 2, 2]))
    rows = Rows(
        torch.tensor([0, 0, 1, 2, 3]), torch.tensor([0.2, -1.0, 2.0, 0.5, 1.0]), torch.tensor([1.0, 2, 1, 3, 1])
    )
    found = check(Known, units, [rows])

    def loss(q):
        residual = (rows.evidence - rows.strength).tolist()
        return [math.log1p(math.exp(-d / s)) for d, s in zip(residual, q, strict=True)]

    ours = loss([math.exp(v) for v in (0.5, 0.5, -0.5, 0.3, -0.3)])
    ones = loss([1.0] * 5)
    assert found.loss == pytest.approx(np.mean(ours))
    assert found.loss_of_one == pytest.approx(np.mean(ones))
    gains = np.array(ones) - np.array(ours)
    sums = np.bincount([0, 0, 1, 2, 3], gains - gains.mean())
    half = 1.96 * math.sqrt((sums**2).sum()) / 5
    assert (found.gain.low, found.gain.high) == pytest.approx((gains.mean() - half, gains.mean() + half))
    assert (found.prompts, found.rows) == (4, 5)


def test_a_common_factor_does_not_help():
    """All residuals are negative, so any larger q has a smaller loss; centered in each fold, it has none."""
    units = Units(torch.stack([torch.zeros(6), torch.full((6,), 0.6)], dim=1), None, torch.arange(6) % 2)
    rows = Rows(torch.arange(6), torch.zeros(6), torch.full((6,), 2.0))
    assert check(Known, units, [rows]).gain.value == pytest.approx(0, abs=1e-12)


def test_nothing_of_a_fold_reaches_its_own_scales():
    units, rows = world(1, 0.8, prompts=100)
    before = out_of_fold_log_scales(pooled, units, rows)
    inside = (units.folds == 2)[rows.unit]
    evidence = torch.where(inside, rows.evidence * 3 + 1, rows.evidence)
    after = out_of_fold_log_scales(pooled, units, Rows(rows.unit, evidence, rows.strength))
    assert after[units.folds == 2].equal(before[units.folds == 2])
    assert not after[units.folds == 1].equal(before[units.folds == 1])


def test_where_scales_differ_they_are_real():
    units, rows = world(0, 1.0)
    found = check(pooled, units, [rows])
    assert found.real
    assert verdict(found).startswith("real: on prompts it has not seen")
    assert found.chance == pytest.approx(0.001)
    assert found.exchanged < found.gain.value
    assert found.halves > 0.5


@pytest.mark.soak
def test_where_they_do_not_there_are_few_alarms():
    alarms = sum(check(pooled, *(units, [rows])).real for units, rows in (world(seed, 0.0, 300) for seed in range(6)))
    assert alarms <= 1


def test_scales_of_noise_do_not_agree():
    units, rows = world(3, 0.0)
    found = check(pooled, units, [rows])
    assert not found.real
    assert "q ≡ 1" in verdict(found).split(":")[0]
    assert abs(found.halves) < 0.5


def test_pilots_seeds_are_averaged_and_compared():
    units, rows = world(4, 1.0, prompts=300)
    other = Rows(rows.unit, rows.evidence + 0.1 * torch.randn(len(rows)), rows.strength)
    found = check(pooled, units, [rows, other])
    assert len(found.seeds) == 1
    assert found.seeds[0] > 0.9
    assert "pilots of two seeds" in verdict(found)


def test_domains_that_only_one_fold_has():
    units, rows = world(6, 0.5, prompts=60)
    units = Units(units.features, units.folds.clone(), units.folds)  # every fold is a domain of its own
    assert check(pooled, units, [rows]).rows == len(rows)


def test_too_few_to_learn_from_are_not_called_real():
    units, rows = world(7, 1.0, prompts=8)
    assert check(pooled, units, [rows]).gain.value == 0
    units, rows = world(7, 1.0, prompts=60)
    valid = (units.folds == 0)[rows.unit]
    assert not check(pooled, units, [Rows(rows.unit, rows.evidence, rows.strength, valid)]).real


def test_prompts_with_one_comparison_have_no_halves():
    units, rows = world(5, 0.5, prompts=60, pairs=1)
    assert check(pooled, units, [rows]).halves is None


def test_exchanges_stay_within_folds_and_give_every_order_its_chance():
    """Two folds of two prompts: four orders, of which the true one is the best."""
    log_q, folds = torch.tensor([0.5, -0.5, 0.3, -0.3]), torch.tensor([0, 0, 1, 1])
    rows = Rows(torch.arange(4), torch.tensor([-3.0, 1.0, -3.0, 1.0]), torch.zeros(4))
    mean, chance = exchanged_gain(LOSSES, rows, log_q, folds)
    assert chance == pytest.approx(0.25, abs=0.05)
    orders = [log_q, log_q[[1, 0, 2, 3]], log_q[[0, 1, 3, 2]], log_q[[1, 0, 3, 2]]]
    assert mean == pytest.approx(np.mean([gain_of(LOSSES, rows, order).value for order in orders]), abs=0.02)


def test_chance_is_uniform_where_there_is_nothing():
    found = []
    for seed in range(30):
        rng = torch.Generator().manual_seed(seed)
        units, rows = world(seed, 0.0, prompts=80)
        found.append(exchanged_gain(LOSSES, rows, torch.randn(80, generator=rng), units.folds)[1])
    assert np.mean(found) == pytest.approx(0.5, abs=0.12)
    assert np.mean(np.array(found) <= 0.05) <= 0.12


@pytest.mark.parametrize("own", [None, OwnGain(0.1, 0.005)])
def test_it_reads_back_as_it_was(own):
    made = Check(3, 6, 1.0, 1.1, Gain(0.1, 0.05), None, [0.5], 0.01, 0.02, Beyond(0.05, 0.01), own)
    assert Check.of_dict(json.loads(json.dumps(made.to_dict()))) == made


@pytest.mark.soak
def test_what_only_a_prompt_s_own_comparisons_know_is_real_too():
    rng = torch.Generator().manual_seed(7)
    unit = torch.arange(200).repeat_interleave(20)
    uniform = torch.rand(unit.shape, generator=rng).clamp(1e-6, 1 - 1e-6)
    noise = torch.exp(torch.randn(200, generator=rng))[unit] * torch.log(uniform / (1 - uniform))
    units = Units(torch.randn(200, 3, generator=rng), None, torch.arange(200) % 5)
    rows = Rows(unit, 0.4 + noise, torch.ones(len(unit)))
    told = make_estimator("auto", {}).fit(units, rows).diagnostics_
    own = OwnGain(told["own_gain"], told["own_chance"])
    found = check(lambda: make_estimator("auto", {}), units, [rows], own)
    assert found.own.value > 0
    assert found.real
    assert "own comparisons add to it" in verdict(found)


@given(st.lists(st.integers(-4, 4), min_size=3, max_size=30), st.integers(0, 9))
def test_rank_correlation_is_scipy_s(values, seed):
    a = torch.tensor(values, dtype=torch.float32)
    b = a[torch.randperm(len(a), generator=torch.Generator().manual_seed(seed))]
    expected = spearmanr(a.numpy(), b.numpy()).statistic if len({*values}) > 1 else 0.0
    assert rank_correlation(a, b) == pytest.approx(expected, abs=1e-9)
