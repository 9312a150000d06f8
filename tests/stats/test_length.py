"""Proposition 4.2: length variability alone spreads sequence-level scales, but not length-normalized ones."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from unmdpo.stats.length import LengthProblem

PAPER = LengthProblem(
    margin=1.0, spreads=(1 / 2, 1 / 4), values=(-1 / 2, 1.0), probabilities=(2 / 3, 1 / 3), penalty=0.01
)


def test_asymmetric_example_has_whole_token_counts():
    # n₀ = 8: prompt one has 8(1 ∓ …) = 6 or 12 tokens, prompt two 7 or 10.
    assert PAPER.token_counts(8).tolist() == [[6, 12], [7, 10]]
    assert np.asarray(PAPER.probabilities) @ PAPER.token_counts(8).T == pytest.approx([8, 8])


def test_sequence_level_spreads_and_normalized_does_not():
    pair = PAPER.solve()
    assert pair.first > 1 > pair.second
    assert pair.first * pair.second == pytest.approx(1)
    assert 1 < pair.ratio < 2  # δ₁/δ₂ = 2 bounds the ratio
    assert PAPER.solve(normalized=True) == (1.0, 1.0, True)


@pytest.mark.parametrize(("spreads", "ratio"), [((0.5, 0.25), 2), ((0.9, 0.1), 4), ((0.6, 0.2), 3)])
def test_without_penalty_the_ratio_is_min_of_spread_ratio_and_four(spreads, ratio):
    problem = LengthProblem(2.0, spreads, PAPER.values, PAPER.probabilities, penalty=0.0)
    assert problem.solve().ratio == pytest.approx(ratio)
    assert problem.solve(normalized=True).unique is False


def softplus(x):
    return math.log1p(math.exp(x))


def test_objective_by_hand():
    # s = log 2, c = 1, δ = (1/2, 1/4): residuals over scales are (−1/8, 1/4) and (−1/4, 1/2).
    first = 2 / 3 * softplus(1 / 8) + 1 / 3 * softplus(-1 / 4)
    second = 2 / 3 * softplus(1 / 4) + 1 / 3 * softplus(-1 / 2)
    by_hand = (first + second) / 2 + 0.01 * math.log(2) ** 2
    assert PAPER.objective(math.log(2)) == pytest.approx(by_hand)
    assert PAPER.objective(0.3, normalized=True) == pytest.approx(math.log(2) + 0.01 * 0.09)


@given(st.floats(0.1, 5), st.floats(0.05, 0.45), st.floats(1.1, 2.1), st.floats(0.05, 0.95), st.floats(0, 0.2))
def test_any_two_point_variable(margin, small, ratio, low_share, penalty):
    low, high = -(1 - low_share), low_share  # mean zero
    problem = LengthProblem(margin, (small * ratio, small), (low, high), (low_share, 1 - low_share), penalty=penalty)
    pair = problem.solve()
    best = minimize_scalar(problem.objective, bounds=(-math.log(2), math.log(2)), method="bounded",
                           options={"xatol": 1e-9})  # fmt: skip
    assert problem.objective(math.log(pair.first)) <= best.fun + 1e-12
    assert pair.first > 1
    assert pair.ratio <= ratio * (1 + 1e-9)
    step = 1e-6
    numeric = (problem.objective(0.1 + step) - problem.objective(0.1 - step)) / (2 * step)
    assert problem.slope(0.1) == pytest.approx(numeric, abs=1e-7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spreads": (0.2, 0.4)}, "δ₂ < δ₁"),
        ({"probabilities": (0.5, 0.4)}, "sum to one"),
        ({"probabilities": (0.5, 0.5)}, "mean zero"),
        ({"values": (0.0, 0.0)}, "not always be zero"),
        ({"margin": 0.0}, "margin must be positive"),
    ],
)
def test_assumptions_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        LengthProblem(**(vars(PAPER) | changes))
