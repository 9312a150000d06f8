"""Scales that only follow how far pilots move are not taken for noise."""

import math

import pytest
import torch
from sklearn.linear_model import Ridge

from unmdpo.scale import RidgeScale, Rows, Units
from unmdpo.scale.check import SIZE, check
from unmdpo.scale.evidence_size import PENALTIES, SMALLEST, foreseen_values, regress, sizes, split


def world(seed, size_spread, noise_spread, prompts=800):
    """Pilots move by exp(size_spread·x₀) on a prompt, and labels are wrong more often where x₁ is large, by
    `noise_spread`."""
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(prompts, 4, generator=rng)
    unit = torch.arange(prompts).repeat_interleave(2)
    strength = torch.randint(1, 4, unit.shape, generator=rng).float()
    gap = (1 + torch.rand(unit.shape, generator=rng)) * torch.exp(size_spread * features[:, 0])[unit]
    wrong = torch.rand(unit.shape, generator=rng) < torch.sigmoid(noise_spread * features[:, 1] - 2.6)[unit]
    return Units(features, None, torch.arange(prompts) % 5), Rows(unit, torch.where(wrong, -gap, gap), strength)


def test_sizes_by_hand():
    rows = Rows(torch.tensor([0, 0, 2, 2]), torch.tensor([1.0, -3.0, 4.0, 9.0]), torch.ones(4),
                valid=torch.tensor([True, True, True, False]))  # fmt: skip
    first, third = math.log(2 + SMALLEST), math.log(4 + SMALLEST)
    assert sizes(rows, 3).tolist() == pytest.approx([first, math.log(3 + SMALLEST), third])


@pytest.mark.parametrize("penalty", PENALTIES)
def test_the_regression_is_scikit_learn_s(penalty, monkeypatch):
    rng = torch.Generator().manual_seed(0)
    x, new = torch.randn(60, 5, generator=rng), torch.randn(7, 5, generator=rng)
    y = (x[:, 0] + 0.3 * torch.randn(60, generator=rng)).double()
    monkeypatch.setattr("unmdpo.scale.evidence_size.PENALTIES", (penalty,))
    mean, deviation = x.double().mean(0), x.double().std(0, correction=0)
    theirs = Ridge(alpha=penalty).fit((x - mean) / deviation, y)
    expected = theirs.predict((new - mean) / deviation) - float(y.mean())
    assert regress(x, y, new).tolist() == pytest.approx(expected.tolist(), abs=1e-4)


def test_sizes_are_foreseen_on_units_that_were_not_seen():
    units, rows = world(0, size_spread=0.6, noise_spread=0.0)
    found = foreseen_values(units, sizes(rows, len(units)), units.folds)
    assert torch.corrcoef(torch.stack([found, units.features[:, 0].double()]))[0, 1] > 0.95
    alone = units.features.clone()
    alone[units.folds == 1] = 0.0  # what is inside a fold changes nothing for its own regression
    inside = units.folds == 1
    other = foreseen_values(Units(alone, None, units.folds), sizes(rows, len(units)), units.folds)
    assert other[inside].std() < 1e-6 < found[inside].std()


def test_a_scale_is_split_into_what_falls_with_the_size_and_the_rest():
    size, groups = torch.tensor([0.0, 1.0, 2.0, 5.0]), torch.tensor([0, 0, 0, 1])
    follows, rest = split(torch.tensor([1.0, 0.0, -1.0, 3.0]), size, groups)
    assert follows.tolist() == [1.0, 0.0, -1.0, 3.0]
    assert rest.tolist() == [0.0, 0.0, 0.0, 0.0]
    rising, kept = split(torch.tensor([-1.0, 0.0, 1.0, 3.0]), size, groups)  # as noise does
    assert rising.tolist() == [0.0, 0.0, 0.0, 3.0]
    assert kept.tolist() == [-1.0, 0.0, 1.0, 0.0]


def test_pilots_that_move_further_on_some_prompts_are_no_noise():
    found = check(RidgeScale, *_args(world(1, size_spread=0.6, noise_spread=0.0)))
    assert found.better
    assert found.finding == f"better than q ≡ 1, but mostly {SIZE}"
    assert found.explained.shares[SIZE] > 0.5


def test_noise_beside_it_is_found():
    found = check(RidgeScale, *_args(world(1, size_spread=0.6, noise_spread=1.2)))
    assert found.explained.without[SIZE].low > 0
    assert found.finding == "informative and better"


def _args(made):
    units, rows = made
    return units, [rows]
