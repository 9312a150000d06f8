"""A mean over prompts and a few seeds, and how sure it is.

A value is the mean, plus what its seed, its prompt and chance add. The mean is off by what the seeds add, which only a
few of them tell, and by what the prompts add, which many tell. So each part has its own variance and degrees of
freedom, and Student's quantile lies between those of the two, weighted by the variances (Cochran 1964). Resampling two
or three seeds instead makes intervals too narrow: see `benchmarks/coverage.py` and docs/evidence/statistics.md.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import t

SMALLEST = 1e-9  # p-values are not computed below this


@dataclass(frozen=True)
class MeanOverSeeds:
    value: float
    of_seeds: float  # variance of the mean: what seeds add, and chance
    of_prompts: float  # and what prompts add
    freedom: tuple[int, int]  # of both variances

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> "MeanOverSeeds":
        """Of values (s, n) for s > 1 seeds and n prompts."""
        s, n = values.shape
        mean, by_seed, by_prompt = values.mean(), values.mean(axis=1), values.mean(axis=0)
        freedom = s - 1, max(1, n - 1)
        between_seeds = n * ((by_seed - mean) ** 2).sum() / freedom[0]
        between_prompts = s * ((by_prompt - mean) ** 2).sum() / freedom[1]
        rest = ((values - by_seed[:, None] - by_prompt + mean) ** 2).sum() / (freedom[0] * freedom[1])
        return cls(
            float(mean), float(between_seeds / (s * n)), max(0.0, float(between_prompts - rest)) / (s * n), freedom
        )

    def margin(self, chance: float = 0.05) -> float:
        """How far the true mean is away at most, but for this chance."""
        variances = np.array([self.of_seeds, self.of_prompts])
        whole = variances.sum()
        return float(variances @ t.isf(chance / 2, self.freedom) / np.sqrt(whole)) if whole > 0 else 0.0

    def p(self, null: float) -> float:
        """The chance to be as far from this mean, if it were the true one."""
        distance = abs(self.value - null)
        if self.margin(SMALLEST) <= distance:
            return SMALLEST if distance > 0 else 1.0
        return float(brentq(lambda chance: self.margin(chance) - distance, SMALLEST, 1.0))


def margin_of_mean(values: NDArray[np.float64]) -> float:
    """The 95 % margin of the mean of values (s, n); with one seed, what seeds add is not in it."""
    s, n = values.shape
    if s > 1:
        return MeanOverSeeds.of(values).margin()
    return float(t.isf(0.025, max(1, n - 1)) * values.std(ddof=min(1, n - 1)) / np.sqrt(n))
