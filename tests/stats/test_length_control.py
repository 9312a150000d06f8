"""The length-controlled win rate equals alpaca_eval 0.6.6's fit, digit for digit.

The expected values come from that package's `make_dmatrix_for_model` and `fit_LogisticRegressionCV` with
scikit-learn 1.9.1, on exactly these inputs.
"""

import numpy as np
import pytest

from tests.worlds.length_control import EXPECTED, world
from unmdpo.stats.length_control import length_controlled


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
    found = length_controlled(preference, baseline, model, difficulty, gamed)
    assert found == length_controlled(preference[10:], baseline[10:], model[10:], difficulty[10:], gamed)
    with pytest.raises(ValueError, match="lengths do not differ"):
        length_controlled(preference, baseline, baseline, difficulty, gamed)
