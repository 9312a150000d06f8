"""Rank correlation, checked against SciPy's, with meaningful intervals."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from unmdpo.stats.evaluation import rank_correlation


def test_it_equals_scipys_with_ties():
    rng = np.random.default_rng(0)
    first = rng.integers(0, 8, 200).astype(float)
    second = first + rng.normal(0, 3, 200)
    found = rank_correlation(first, second)
    assert found.value == pytest.approx(spearmanr(first, second).statistic)
    assert found.low < found.value < found.high


def test_the_interval_covers_zero_where_nothing_is_shared_and_not_where_much_is():
    rng = np.random.default_rng(1)
    first = rng.normal(size=300)
    unrelated = rank_correlation(first, rng.normal(size=300))
    assert unrelated.low < 0 < unrelated.high
    assert rank_correlation(first, first + rng.normal(size=300)).low > 0.4


def test_a_side_that_does_not_vary_has_no_rank():
    assert rank_correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None
    assert rank_correlation([1.0], [2.0]) is None
    found = rank_correlation([1.0, 1.0, 2.0], [1.0, 2.0, 3.0])  # some resamples do not vary
    assert np.isfinite([found.value, found.low, found.high]).all()
