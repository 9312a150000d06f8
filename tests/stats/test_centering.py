"""Equal residuals need not make the constant scale a local minimum."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmdpo.stats.centering import curvature, objective, splitting_residuals


def test_the_papers_example_by_hand():
    d, sigma = 0.55, 1 / (1 + math.exp(-0.55))
    by_hand = d * (1 - sigma) * (d * sigma - 1) + 2 * 0.01
    assert curvature(0.55, 0.01) == pytest.approx(by_hand)
    assert curvature(0.55, 0.01) == pytest.approx(-0.1111, abs=1e-4)
    assert objective(0.3, 0.55, 0.01) < objective(0.0, 0.55, 0.01)


@given(st.floats(-4, 4), st.floats(0, 1))
def test_curvature_is_the_second_derivative(residual, penalty):
    h = 1e-3
    numeric = (
        objective(h, residual, penalty) - 2 * objective(0, residual, penalty) + objective(-h, residual, penalty)
    ) / h**2
    assert curvature(residual, penalty) == pytest.approx(numeric, abs=1e-4)


def test_when_it_is_negative():
    low, high = splitting_residuals(0.01)
    assert curvature(low, 0.01) == pytest.approx(0, abs=1e-9)
    assert curvature(high, 0.01) == pytest.approx(0, abs=1e-9)
    assert low < 0.55 < high
    assert curvature(low - 0.01, 0.01) > 0 > curvature(low + 0.01, 0.01)
    assert curvature(high + 0.01, 0.01) > 0 > curvature(high - 0.01, 0.01)
    start, end = splitting_residuals(0.0)
    assert start == 0
    assert end / (1 + math.exp(-end)) == pytest.approx(1)  # d·σ(d) = 1
    assert splitting_residuals(0.2) is None
    assert curvature(-0.5, 0.0) > 0  # negative residuals never split
