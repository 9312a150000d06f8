"""Linear scales, offsets of a prompt's own comparisons, and the best of several."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import spearmanr

from tests.worlds.scales import world
from unmdpo.scale import AutoScale, RidgeScale, Rows, Units, maps
from unmdpo.scale.auto import CANDIDATES
from unmdpo.scale.features import count_sketch, narrow_features, wide_features
from unmdpo.scale.fitting import losses_by
from unmdpo.scale.prompt_offsets import best_offsets, fit_offsets
from unmdpo.scale.ridge import PATH, principal_axes
from unmdpo.scale.settings import RidgeSettings


def objective(x, rows, penalty, alpha):
    """The whole loss in plain NumPy."""
    evidence, strength, unit = (values.double().numpy() for values in (rows.evidence, rows.strength, rows.unit))
    unit = unit.astype(int)

    def value(theta):
        raw = x @ theta
        bounded = maps.BOUND * np.tanh((raw - raw.mean()) / maps.BOUND)
        log_q = bounded - bounded.mean()
        losses = np.logaddexp(0, -(evidence - strength) / np.exp(log_q)[unit])
        return losses.mean() + penalty * (log_q**2).mean() + alpha / 2 * theta @ theta

    return value


@pytest.mark.parametrize("alpha", [3.0, 0.1])
def test_newton_finds_scipy_s_minimum(alpha):
    units, rows = world(1, 0.8, prompts=200)
    x = units.features.double()
    scale = RidgeScale()
    theta = scale.descend(x, rows, torch.zeros(4, dtype=torch.float64), alpha)
    value = objective(x.numpy(), rows, 0.01, alpha)
    found = minimize(value, np.zeros(4), method="BFGS", options={"gtol": 1e-10})
    assert value(theta.numpy()) == pytest.approx(found.fun, abs=1e-6)
    assert theta.numpy() == pytest.approx(found.x, abs=5e-3)


def test_it_finds_what_is_there_and_nothing_else():
    units, rows = world(2, 1.0, dimensions=40)
    found = RidgeScale().fit(units, rows)
    assert spearmanr(found.q_, units.features[:, 0]).statistic > 0.7
    assert found.shrinkage_ in PATH
    nothing = [RidgeScale().fit(*world(seed, 0.0, dimensions=40)) for seed in range(4)]
    assert sum(one.diagnostics_.get("constant", 0.0) for one in nothing) >= 2
    assert max(one.diagnostics_["log_std"] for one in nothing) < found.diagnostics_["log_std"] / 2


def test_domains_have_columns_of_their_own():
    rng = torch.Generator().manual_seed(4)
    domains = torch.arange(600) % 3
    unit = torch.arange(600).repeat_interleave(2)
    uniform = torch.rand(unit.shape, generator=rng).clamp(1e-6, 1 - 1e-6)
    noise = torch.tensor([0.3, 1.0, 3.0])[domains][unit] * torch.log(uniform / (1 - uniform))
    units = Units(torch.randn(600, 3, generator=rng), domains, torch.arange(600) % 5)
    found = RidgeScale().fit(units, Rows(unit, 1 + noise, torch.ones(1200)))
    means = [found.q_[domains == domain].log().mean() for domain in range(3)]
    assert means[0] < means[1] < means[2]
    unknown = found.predict(Units(units.features, torch.full((600,), -1)))
    assert means[0] < unknown.log().mean() < means[2]


def test_axes_do_not_depend_on_chance():
    columns = torch.randn(50, 6, dtype=torch.float64)
    axes = principal_axes(columns, 4)
    assert axes.shape == (6, 4)
    assert torch.allclose(axes.T @ axes, torch.eye(4, dtype=torch.float64), atol=1e-10)
    order = torch.randperm(50)
    assert torch.allclose(principal_axes(columns[order], 4), axes, atol=1e-8)


def test_offsets_are_the_most_likely_ones():
    _, rows = world(5, 1.0, prompts=12, pairs=6)
    raw, spread = 0.1 * torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), 0.3
    ours = best_offsets(raw, losses_by(RidgeSettings())(rows), spread, maps.BOUND)
    plain = objective(np.eye(12), rows, 0.0, 0.0)

    def value(offset):
        return len(rows) * plain(raw.numpy() + offset) + (offset**2).sum() / (2 * spread**2)

    found = minimize(value, np.zeros(12), method="BFGS", options={"gtol": 1e-8})
    assert value(ours.numpy()) == pytest.approx(found.fun, abs=1e-4)
    assert ours.numpy() == pytest.approx(found.x, abs=1e-2)


def test_own_comparisons_count_where_there_are_many():
    rng = torch.Generator().manual_seed(7)
    truth = torch.randn(200, generator=rng)  # nothing that a feature knows
    unit = torch.arange(200).repeat_interleave(30)
    uniform = torch.rand(unit.shape, generator=rng).clamp(1e-6, 1 - 1e-6)
    evidence = 0.4 + torch.exp(0.8 * truth)[unit] * torch.log(uniform / (1 - uniform))
    rows, losses = Rows(unit, evidence, torch.ones(len(unit))), losses_by(RidgeSettings())
    own = fit_offsets(torch.zeros(200, dtype=torch.float64), rows, losses, maps.BOUND)
    assert own.spread > 0
    assert spearmanr(own.offset, truth).statistic > 0.6
    first = rows.select(rows.place_in_unit() == 0)
    once = fit_offsets(torch.zeros(200, dtype=torch.float64), first, losses, maps.BOUND)
    assert (once.spread, float(once.offset.abs().max())) == (0.0, 0.0)


def test_halves_do_not_depend_on_the_order_of_rows():
    _, rows = world(8, 0.5, prompts=30, pairs=5)
    order = torch.randperm(len(rows))
    assert torch.equal(rows.select(order).place_in_unit(), rows.place_in_unit()[order])
    assert rows.place_in_unit().bincount().tolist() == [30] * 5


def wide(seed, spread, prompts=400):
    units, rows = world(seed, spread, prompts, dimensions=20)
    texts = ["word " * (1 + place % 7) for place in range(prompts)]
    return Units(wide_features(units.features, texts), None, units.folds), rows, units.features[:, 0]


def test_the_best_is_chosen_or_none():
    units, rows, truth = wide(1, 1.2)
    found = AutoScale().fit(units, rows)
    assert found.chosen_ in CANDIDATES[1:]
    assert spearmanr(found.q_, truth).statistic > 0.6
    nothing = AutoScale().fit(*wide(3, 0.0)[:2])
    assert nothing.diagnostics_["constant"] == 1
    assert nothing.q_.tolist() == [1.0] * 400


def test_wide_features_are_the_embedding_and_its_length():
    embeddings = torch.randn(3, 8)
    features = wide_features(embeddings, ["", "one", "two words"])
    assert features[:, :8].equal(embeddings)
    assert features[:, 8:].tolist() == pytest.approx(np.log1p([[0, 0], [3, 1], [9, 2]]), abs=1e-6)
    assert wide_features(torch.randn(2, 700), ["a", "b"]).shape == (2, 514)
    assert narrow_features(features).shape == (3, 64)


@pytest.mark.parametrize("dimension", [20, 511, 512, 576, 2048])
def test_the_narrow_sketch_is_the_paper_s(dimension):
    embeddings = torch.randn(5, dimension)
    assert narrow_features(wide_features(embeddings, list("abcde"))).allclose(count_sketch(embeddings), atol=1e-4)
