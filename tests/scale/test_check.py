"""What is known about a scale: by hand, against plain loops, and in worlds where the truth is known."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest, t

from tests.worlds.scales import world
from unmdpo.scale import FrozenScale, RidgeScale, Rows, Units, make_estimator
from unmdpo.scale.check import (
    DOMAIN,
    LENGTH,
    SIZE,
    STRENGTH,
    Check,
    Explained,
    Gain,
    OwnGain,
    chance_of_information,
    check,
    out_of_fold_log_scales,
    verdict,
)
from unmdpo.scale.evidence_size import mean_of_units
from unmdpo.scale.fitting import losses_by
from unmdpo.scale.settings import MarginSettings
from unmdpo.scale.worth import expectation

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


def test_where_scales_differ_they_are_informative_and_better():
    units, rows = world(0, 1.0)
    found = check(pooled, units, [rows])
    assert found.informative
    assert found.better
    assert found.finding == "informative and better"
    assert verdict(found).startswith(
        "informative and better. On prompts it has not seen: test for being informative, p = 0.000;"
    )
    assert "Worth it? In 17 simulated worlds whose scale was better than q ≡ 1" in verdict(found)
    assert found.halves > 0.5


def test_scales_of_noise_do_not_agree():
    units, rows = world(3, 0.0)
    found = check(pooled, units, [rows])
    assert not found.better
    assert found.finding in ("nothing found", "worse than q ≡ 1")
    assert abs(found.halves) < 0.5


class Quick(Known):
    """A line through how large the residuals of prompts are."""

    def fit(self, units, rows):
        residual = mean_of_units(rows, (rows.strength - rows.evidence).abs().double(), len(units))
        self.line = torch.linalg.lstsq(units.features.double(), (residual - residual.mean())[:, None]).solution
        return super().fit(units, rows)

    def predict(self, units):
        return (0.2 * units.features.double() @ self.line).flatten().exp()


def test_the_chance_of_information_is_uniform_where_there_is_none(monkeypatch):
    """Heads that share rows with each other would find something in 12 % of such worlds."""
    monkeypatch.setattr("unmdpo.scale.check.EXCHANGES", 99)
    worlds = (world(seed, 0.0, prompts=60, dimensions=3) for seed in range(300))
    found = np.array([chance_of_information(Quick, LOSSES, *one) for one in worlds])
    assert np.mean(found <= 0.05) <= 0.08
    assert kstest(found, "uniform").pvalue > 0.01
    some = np.array([chance_of_information(Quick, LOSSES, *world(seed, 0.5, 200)) for seed in range(10)])
    assert np.mean(some <= 0.05) >= 0.5


def test_labels_that_are_stated_more_strongly_are_no_noise():
    """The same noise everywhere, but on half of the prompts every label is a step stronger."""
    units, rows = world(2, 0.0, prompts=1000)
    rows = Rows(rows.unit, rows.evidence, rows.strength + 2 * (units.features[rows.unit, 0] > 0))
    found = check(RidgeScale, units, [rows])
    assert found.better
    assert found.finding == f"better than q ≡ 1, but mostly {STRENGTH}"
    assert found.explained.shares[STRENGTH] > 0.5


def test_what_goes_with_length_is_said_to():
    units, rows = world(2, 1.0, prompts=600)
    lengths = (100 * torch.exp(units.features[:, 0]))[rows.unit]
    found = check(RidgeScale, units, [Rows(rows.unit, rows.evidence, rows.strength, lengths=lengths)])
    assert found.finding == f"better than q ≡ 1, but mostly {LENGTH}"
    assert found.explained.shares[LENGTH] > 0.5


def test_the_share_of_domains_by_hand():
    units, rows = world(8, 1.0, prompts=200)
    domains = (units.features[:, 0] > 0).long()
    found = check(RidgeScale, Units(units.features, domains, units.folds), [rows])
    log_q = out_of_fold_log_scales(RidgeScale, Units(units.features, domains, units.folds), rows)
    means = torch.stack([log_q[domains == place].mean() for place in (0, 1)])[domains]
    assert found.explained.shares[DOMAIN] == pytest.approx(float(means.var() / log_q.var()))


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


def test_too_few_to_learn_from_are_not_called_better():
    units, rows = world(7, 1.0, prompts=8)
    assert check(pooled, units, [rows]).gain.value == 0
    units, rows = world(7, 1.0, prompts=60)
    valid = (units.folds == 0)[rows.unit]
    found = check(pooled, units, [Rows(rows.unit, rows.evidence, rows.strength, valid)])
    assert (found.better, found.chance) == (False, 1.0)


def test_prompts_with_one_comparison_have_no_halves():
    units, rows = world(5, 0.5, prompts=60, pairs=1)
    assert check(pooled, units, [rows]).halves is None


@pytest.mark.parametrize("own", [None, OwnGain(0.1, 0.005)])
def test_it_reads_back_as_it_was(own):
    explained = Explained({SIZE: 0.5}, {SIZE: Gain(0.05, 0.01)})
    made = Check(3, 6, 0.02, 1.0, 1.1, Gain(0.1, 0.05), explained, None, [0.5], own)
    assert Check.of_dict(json.loads(json.dumps(made.to_dict()))) == made


@pytest.mark.soak
def test_what_only_a_prompt_s_own_comparisons_know_is_said_to_be_better():
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
    assert "own comparisons" in found.finding
    assert "own comparisons add to it" in verdict(found)


@pytest.mark.parametrize(
    ("better", "worlds", "mean", "deviation", "range_"),
    [(True, 17, 51.0, 1.3, "48 to 54 %"), (False, 55, 50.5, 1.1, "48 to 53 %")],
)
def test_what_to_expect_is_students_prediction_interval(better, worlds, mean, deviation, range_):
    half = t.ppf(0.975, worlds - 1) * deviation * math.sqrt(1 + 1 / worlds)
    assert range_ == f"{mean - half:.0f} to {mean + half:.0f} %"
    assert f"won {mean} % " in expectation(better)
    assert f"expect {range_}" in expectation(better)


def test_it_says_which_scales_won():
    assert "expect 48 to 54 %" in expectation(better=True)
    assert "not shown to be better" in expectation(better=False)
