"""Compares a candidate's judged responses with a baseline's: win rate, reward difference, length, intervals.

All statistics of a panel share one table of paired prompt resamples, so their intervals describe the same draws
("Datasets, panels, and evaluation").
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

Floats = NDArray[np.float64]
TIE = 1e-6  # score differences up to this size are ties
RESAMPLES = 10_000
RANK_RESAMPLES = 1000  # for rank correlations
LONGEST = 1.15  # the selection rule's limit on L/L_D


@dataclass(frozen=True)
class Estimate:
    """A statistic with its 95% percentile interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Judged:
    """One policy's responses to a panel's prompts, in the panel's order."""

    scores: Floats  # (n,)
    characters: Floats  # (n,) length of each response

    def __post_init__(self) -> None:
        for name, values in (("scores", self.scores), ("characters", self.characters)):
            if not np.isfinite(values).all():
                bad = np.flatnonzero(~np.isfinite(values))[:8].tolist()
                raise ValueError(f"{name} of prompts {bad} are not finite")


@dataclass(frozen=True)
class Outcome:
    """A candidate against a baseline."""

    prompts: int
    wins: int
    ties: int
    losses: int
    win_rate: Estimate  # percent, a tie counts as half a win (Eq. main-evaluation-metrics)
    reward_difference: Estimate  # ΔR
    length_ratio: Estimate  # L/L_D

    @property
    def eligible(self) -> bool:
        """The paper's selection rule: a positive ΔR, and responses that are not much longer."""
        return self.reward_difference.value > 0 and self.length_ratio.value <= LONGEST

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Resamples:
    """How often each prompt was drawn in each resample: (resamples, n)."""

    counts: Floats

    @classmethod
    def draw(cls, prompts: int, seed: int, resamples: int = RESAMPLES) -> "Resamples":
        drawn = np.random.default_rng(seed).integers(0, prompts, size=(resamples, prompts))
        flat = (drawn + prompts * np.arange(resamples)[:, None]).ravel()
        counts = np.bincount(flat, minlength=resamples * prompts).reshape(resamples, prompts)
        return cls(counts.astype(np.float64))

    def means(self, values: Floats) -> Floats:
        """(resamples,) the mean of `values` (n,) in each resample."""
        means: Floats = self.counts @ values / self.counts.shape[1]
        return means


def compare(candidate: Judged, baseline: Judged, resamples: Resamples) -> Outcome:
    """The candidate against the baseline on the same prompts."""
    difference = candidate.scores - baseline.scores
    won, tied = difference > TIE, np.abs(difference) <= TIE
    points = 100 * (won + tied / 2)
    return Outcome(
        prompts=len(difference),
        wins=int(won.sum()),
        ties=int(tied.sum()),
        losses=int((~won & ~tied).sum()),
        win_rate=_estimate(float(points.mean()), resamples.means(points)),
        reward_difference=_estimate(float(difference.mean()), resamples.means(difference)),
        length_ratio=_estimate(
            float(_length(candidate.characters.mean()) / _length(baseline.characters.mean())),
            _length(resamples.means(candidate.characters)) / _length(resamples.means(baseline.characters)),
        ),
    )


def by_domain(candidate: Judged, baseline: Judged, domains: Sequence[str], seed: int) -> dict[str, Outcome]:
    """The same for each domain, resampling prompts within it."""
    names = np.array(domains)
    outcomes = {}
    for name in sorted(set(domains)):
        rows = names == name
        ours, theirs = (Judged(j.scores[rows], j.characters[rows]) for j in (candidate, baseline))
        outcomes[name] = compare(ours, theirs, Resamples.draw(int(rows.sum()), seed))
    return outcomes


def select(outcomes: Mapping[str, Outcome]) -> str | None:
    """The eligible candidate with the largest ΔR."""
    eligible = [name for name, outcome in outcomes.items() if outcome.eligible]
    return max(eligible, key=lambda name: outcomes[name].reward_difference.value, default=None)


def _length(mean: Any) -> Any:
    """Mean characters; a policy that says nothing counts as one character, so ratios are defined."""
    return np.maximum(mean, 1.0)


def _estimate(value: float, draws: Floats) -> Estimate:
    low, high = np.percentile(draws, [2.5, 97.5])
    return Estimate(value, float(low), float(high))


def rank_correlation(first: ArrayLike, second: ArrayLike, seed: int = 0) -> Estimate | None:
    """Spearman's ρ with an interval from paired resamples; None if one side does not vary."""
    pair = np.stack([np.asarray(first, np.float64), np.asarray(second, np.float64)])  # (2, n)
    if pair.shape[1] < 2 or np.isclose(pair.max(axis=1), pair.min(axis=1)).any():
        return None
    drawn = np.random.default_rng(seed).integers(0, pair.shape[1], size=(RANK_RESAMPLES, pair.shape[1]))
    resampled = _spearman(pair[0][drawn], pair[1][drawn])
    low, high = np.nanpercentile(resampled, [2.5, 97.5])
    return Estimate(float(_spearman(pair[:1], pair[1:])[0]), float(low), float(high))


def _spearman(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """(k,) correlations of the ranks of k pairs of rows (k, n); nan for rows that do not vary."""
    ranks = [rankdata(rows, axis=1) for rows in (first, second)]
    a, b = (rows - rows.mean(axis=1, keepdims=True) for rows in ranks)
    with np.errstate(invalid="ignore"):
        rho: NDArray[np.float64] = (a * b).sum(axis=1) / np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return rho
