"""Proposition 4.2: length variability alone spreads sequence-level scales, but not length-normalized ones."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from unmdpo.stats.length import LengthProblem

PAPER = LengthProblem(
    margin=1.0, spreads=(1 / 2, 1 / 4), values=(-1 / 2, 1.0), probabilities=(2 / 3, 1 / 3), penalty=0.01
)


def test_sequence_level_scales_spread():
    pair = PAPER.solve()
    assert pair.first > 1 > pair.second
    assert pair.first * pair.second == pytest.approx(1)
    assert 1 < pair.ratio < 2  # δ₁/δ₂ = 2 bounds the ratio


@pytest.mark.parametrize(("spreads", "ratio"), [((0.5, 0.25), 2), ((0.9, 0.1), 4), ((0.6, 0.2), 3)])
def test_without_penalty_the_ratio_is_min_of_spread_ratio_and_four(spreads, ratio):
    problem = LengthProblem(2.0, spreads, PAPER.values, PAPER.probabilities, penalty=0.0)
    assert problem.solve().ratio == pytest.approx(ratio)


def objective(problem, log_scale):
    """The expected scale-fitting loss at q₁ = e^s, q₂ = e^{−s}, written out."""
    total = problem.penalty * log_scale**2
    for spread, scale in zip(problem.spreads, (math.exp(log_scale), math.exp(-log_scale)), strict=True):
        for value, share in zip(problem.values, problem.probabilities, strict=True):
            total += share * math.log1p(math.exp(-problem.margin * spread * value / scale)) / 2
    return total


@given(st.floats(0.1, 5), st.floats(0.05, 0.45), st.floats(1.1, 2.1), st.floats(0.05, 0.95), st.floats(0, 0.2))
def test_any_two_point_variable(margin, small, ratio, low_share, penalty):
    low, high = -(1 - low_share), low_share  # mean zero
    problem = LengthProblem(margin, (small * ratio, small), (low, high), (low_share, 1 - low_share), penalty=penalty)
    pair = problem.solve()
    best = minimize_scalar(lambda s: objective(problem, s), bounds=(-math.log(2), math.log(2)), method="bounded",
                           options={"xatol": 1e-9})  # fmt: skip
    assert objective(problem, math.log(pair.first)) <= best.fun + 1e-12
    assert pair.first > 1
    assert pair.ratio <= ratio * (1 + 1e-9)
    step = 1e-6
    numeric = (objective(problem, 0.1 + step) - objective(problem, 0.1 - step)) / (2 * step)
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
