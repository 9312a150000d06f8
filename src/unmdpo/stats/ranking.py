"""How well one ranking follows another: Spearman's correlation with an interval over prompts."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from unmdpo.stats.evaluation import Estimate

RESAMPLES = 1000


def rank_correlation(first: ArrayLike, second: ArrayLike, seed: int = 0) -> Estimate | None:
    """Spearman's ρ, its interval from paired resamples; None where one side does not vary."""
    pair = np.stack([np.asarray(first, np.float64), np.asarray(second, np.float64)])  # (2, n)
    if pair.shape[1] < 2 or np.isclose(pair.max(axis=1), pair.min(axis=1)).any():
        return None
    drawn = np.random.default_rng(seed).integers(0, pair.shape[1], size=(RESAMPLES, pair.shape[1]))
    resampled = _spearman(pair[0][drawn], pair[1][drawn])
    low, high = np.nanpercentile(resampled, [2.5, 97.5])
    return Estimate(float(_spearman(pair[:1], pair[1:])[0]), float(low), float(high))


def _spearman(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """(k,) correlations of the ranks of k pairs of rows (k, n); nan for rows that do not vary."""
    ranks = [rankdata(rows, axis=1) for rows in (first, second)]
    a, b = (rows - rows.mean(axis=1, keepdims=True) for rows in ranks)
    with np.errstate(invalid="ignore"):
        found: NDArray[np.float64] = (a * b).sum(axis=1) / np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return found
