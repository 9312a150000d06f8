"""The exact ordinal model, checked by hand and against SciPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unmdpo.stats.ordinal import category_probabilities

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


def test_cutpoints_must_increase():
    with pytest.raises(ValueError, match="increase"):
        category_probabilities(0, 1, [1, 0])


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="positive"):
        category_probabilities(0.0, -1.0, [0.0, 1.0])
