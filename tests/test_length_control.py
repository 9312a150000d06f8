"""The length-controlled win rate equals alpaca_eval 0.6.6's own fit, digit for digit.

The expected values came from that package's `make_dmatrix_for_model` and `fit_LogisticRegressionCV` with
scikit-learn 1.9.1, on these very inputs.
"""

import numpy as np
import pytest

from unmdpo.stats.length_control import GamedBaseline, length_controlled

EXPECTED = {  # seed: win rate, standard error, C, coefficients
    0: (34.27661227877063, 0.29175526271414587, 21.54434690031882,
        (-0.20204538094382843, 0.2218228034614905, -0.6509324505755801)),
    1: (33.24155438115115, 0.11131371920149447, 1291.5496650148827,
        (-0.3404337093500765, 0.09410464236985726, -0.6888621082267825)),
    2: (35.45417825274887, 0.26861853890263615, 2.782559402207126,
        (-0.22884749337411964, 0.2009468462776972, -0.5943594633746994)),
}  # fmt: skip


def world(seed, n=300, m=240):
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(0, 1, n)
    baseline, model = rng.integers(200, 3000, n).astype(float), rng.integers(100, 4000, n).astype(float)
    noise = rng.normal(0, 1.2, n)
    preference = 1 / (
        1 + np.exp(-(0.4 * np.tanh((model - baseline) / 1200) + 0.3 * difficulty - 0.8 + noise))
    )
    gamed = GamedBaseline(rng.uniform(0, 1, m), rng.normal(0, 1, m), rng.normal(0, 1, m))
    return preference, baseline, model, difficulty, gamed


@pytest.mark.parametrize("seed", EXPECTED)
def test_equals_the_reference_package(seed):
    rate, error, strength, coefficients = EXPECTED[seed]
    found = length_controlled(*world(seed))
    assert found.win_rate == pytest.approx(rate, abs=1e-6)
    assert found.standard_error == pytest.approx(error, abs=1e-6)
    assert found.strength == pytest.approx(strength)
    assert found.coefficients == pytest.approx(coefficients, abs=1e-6)


def test_a_model_that_wins_by_length_alone_loses_its_lead():
    _, baseline, model, difficulty, gamed = world(0)
    longer = model > baseline
    found = length_controlled(np.where(longer, 0.9, 0.1), baseline, model, difficulty, gamed)
    assert found.raw_win_rate > 60
    assert abs(found.win_rate - 50) < abs(found.raw_win_rate - 50)


def test_unknown_preferences_are_left_out_and_equal_lengths_refused():
    preference, baseline, model, difficulty, gamed = world(1)
    preference[:10] = np.nan
    assert np.isfinite(length_controlled(preference, baseline, model, difficulty, gamed).win_rate)
    with pytest.raises(ValueError, match="lengths do not differ"):
        length_controlled(preference, baseline, baseline, difficulty, gamed)
