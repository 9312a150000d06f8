"""Calibration, by hand."""

import numpy as np
import pytest
from scipy.special import logit

from unmdpo.stats.calibration import calibration


def test_by_hand():
    """Believed by 65 %: one of two right; by 95 %: all three."""
    differences = np.array([logit(0.65), -logit(0.65), logit(0.95), logit(0.95), logit(0.95)])
    found = calibration(differences)
    assert [(part.pairs, part.low) for part in found.bins] == [(2, 0.6), (3, 0.9)]
    assert [part.right for part in found.bins] == [0.5, 1.0]
    assert found.error == pytest.approx((2 * 0.15 + 3 * 0.05) / 5)


def test_who_is_right_by_chance_and_knows_it_is_calibrated():
    rng = np.random.default_rng(0)
    belief = rng.uniform(0.5, 1.0, 20_000)
    right = rng.random(20_000) < belief
    assert calibration(np.where(right, logit(belief), -logit(belief))).error < 0.02


def test_equal_scores_are_not_right():
    found = calibration(np.zeros(4))
    assert (found.bins[0].right, found.error) == (0.0, 0.5)
