"""The exact ordinal model, checked against SciPy, finite differences and simulated votes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import check_grad

from unmdpo.stats.ordinal import OrdinalModel, _Votes, category_probabilities, log_likelihood

CUTS = [-2.0, -1.0, 0.0, 1.0, 2.0]


def sigma(x):
    return 1 / (1 + np.exp(-x))


def test_probabilities_by_hand():
    # Δ = 1, q = 2, cutpoints 0 and 3: σ(−1/2), σ(1) − σ(−1/2), 1 − σ(1)
    expected = [sigma(-0.5), sigma(1) - sigma(-0.5), 1 - sigma(1)]
    assert category_probabilities(1.0, 2.0, [0.0, 3.0]) == pytest.approx(expected)


@given(st.floats(-5, 5), st.floats(0.1, 5))
def test_probabilities_are_scipy_interval_masses(gap, scale):
    law = stats.logistic(loc=gap, scale=scale)
    edges = np.concatenate([[-np.inf], CUTS, [np.inf]])
    assert category_probabilities(gap, scale, CUTS) == pytest.approx(np.diff(law.cdf(edges)))
    normal = category_probabilities(gap, scale, CUTS, cdf=stats.norm.cdf)
    assert normal == pytest.approx(np.diff(stats.norm(gap, scale).cdf(edges)))
    assert category_probabilities(gap, scale, CUTS).sum() == pytest.approx(1)
    logs = log_likelihood(np.arange(6), np.full(6, gap), np.full(6, scale), CUTS)
    assert np.exp(logs) == pytest.approx(category_probabilities(gap, scale, CUTS))


def test_tails_stay_finite():
    logs = log_likelihood([0, 5, 2], [800.0, -800.0, 800.0], [1.0, 1.0, 1.0], CUTS)
    assert logs == pytest.approx([-802, -802, -800 + np.log(1 - np.exp(-1))], rel=1e-6)


def test_cutpoints_must_increase():
    with pytest.raises(ValueError, match="increase"):
        category_probabilities(0, 1, [1, 0])


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="positive"):
        category_probabilities(0.0, -1.0, [0.0, 1.0])
    with pytest.raises(ValueError, match="increase"):
        log_likelihood([0], [0.0], [1.0], [1.0, 0.0])
    with pytest.raises(ValueError, match="from 0 to 2"):
        log_likelihood([-1], [0.0], [1.0], [0.0, 1.0])


@pytest.mark.parametrize(("gap_penalty", "scale_penalty"), [(0.05, 0.5), (1e-3, 1e-2)])
def test_convergence_is_reported_truly(gap_penalty, scale_penalty):
    """Three votes per pair, one pair in four unanimous: flat directions everywhere."""
    votes, pair, prompt, _, _ = simulate(80, 2, 3, spread=0.7, seed=2)
    model = OrdinalModel(gap_penalty=gap_penalty, scale_penalty=scale_penalty)
    fit = model.fit(votes, pair, prompt)
    assert fit.converged
    stopped = OrdinalModel(gap_penalty=gap_penalty, scale_penalty=scale_penalty, max_iterations=3)
    assert not stopped.fit(votes, pair, prompt).converged

    def objective(found):
        logs = log_likelihood(
            np.searchsorted(found.levels, votes), found.gaps[pair], found.scales[prompt[pair]], found.cutpoints
        )
        log_q = np.log(found.scales)
        return -logs.sum() + gap_penalty * found.gaps @ found.gaps + scale_penalty * log_q @ log_q

    heavier = OrdinalModel(gap_penalty=0.1, scale_penalty=0.8).fit(votes, pair, prompt)
    assert objective(fit) <= objective(heavier) + 1e-6


def test_prompt_ids_may_have_gaps():
    votes, pair, prompt, _, _ = simulate(10, 3, 4, spread=0.5, seed=3)
    plain = OrdinalModel().fit(votes, pair, prompt)
    gapped = OrdinalModel().fit(votes, pair, prompt * 5)
    assert gapped.scales == pytest.approx(plain.scales)


def test_gradient_is_right():
    rng = np.random.default_rng(0)
    data = _Votes(rng.integers(0, 6, 40), np.repeat(np.arange(10), 4), np.arange(10) // 2, 6, 5)
    model = OrdinalModel()
    x = rng.normal(0, 0.5, 5 + 10 + 5)
    error = check_grad(lambda x: model.loss_and_gradient(x, data)[0], lambda x: model.loss_and_gradient(x, data)[1], x)
    assert error < 1e-4


def simulate(prompts, pairs_each, votes_each, spread, seed):
    rng = np.random.default_rng(seed)
    scales = np.exp(rng.normal(0, spread, prompts))
    prompt = np.repeat(np.arange(prompts), pairs_each)
    gaps = rng.normal(0, 2, len(prompt))
    pair = np.repeat(np.arange(len(prompt)), votes_each)
    latent = gaps[pair] + scales[prompt[pair]] * rng.logistic(size=len(pair))
    categories = np.array([-3, -2, -1, 1, 2, 3])[np.searchsorted(CUTS, latent)]
    return categories, pair, prompt, gaps, scales


def test_fit_finds_cutpoints_gaps_and_scales():
    votes, pair, prompt, gaps, scales = simulate(60, 8, 12, spread=0.7, seed=1)
    fit = OrdinalModel(gap_penalty=0.1, scale_penalty=0.1).fit(votes, pair, prompt)
    assert fit.converged
    assert fit.levels == (-3, -2, -1, 1, 2, 3)
    assert np.mean(np.log(fit.scales)) == pytest.approx(0, abs=1e-9)
    assert stats.spearmanr(fit.scales, scales).statistic > 0.9
    assert stats.pearsonr(fit.gaps, gaps).statistic > 0.9
    assert np.diff(fit.cutpoints) == pytest.approx([1, 1, 1, 1], rel=0.35)  # equal steps, up to the unit


def test_unanimous_votes_stay_finite():
    fit = OrdinalModel().fit([3, 3, 3, -3, -3, -3], [0, 0, 0, 1, 1, 1], [0, 1])
    assert np.isfinite(fit.gaps).all()
    assert fit.gaps[0] > 0 > fit.gaps[1]
    with pytest.raises(ValueError, match="two categories"):
        OrdinalModel().fit([1, 1], [0, 0], [0])
