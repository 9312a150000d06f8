"""Compares a candidate's judged responses with a baseline's: win rate, reward difference, length, intervals.

All statistics of a panel share one table of paired prompt resamples, so their intervals describe the same draws
("Datasets, panels, and evaluation"). Policies that were trained with several seeds are compared seed by seed; the
numbers are means over seeds, and their intervals know how few seeds there are (`few_seeds`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from unmdpo.stats.few_seeds import MeanOverSeeds

Floats = NDArray[np.float64]
WIN = 100.0  # points, so that win rates are in percent
TIE = 1e-6  # score differences up to this size are ties
RESAMPLES = 10_000
RANK_RESAMPLES = 1000  # for rank correlations
EQUAL = 1e-9  # means that differ by less differ by rounding
LONGEST = 1.15  # the selection rule's limit on L/L_D


@dataclass(frozen=True)
class Estimate:
    """A statistic with its 95 % interval."""

    value: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Judged:
    """One policy's responses to a panel's prompts, in the panel's order: s seeds, n prompts, k samples of each."""

    scores: Floats  # (s, n, k); also given as (n,) or (s, n)
    characters: Floats  # of the same shape: length of each response

    def __post_init__(self) -> None:
        for name in ("scores", "characters"):
            values: Floats = getattr(self, name)
            values = values[None, :, None] if values.ndim == 1 else values[..., None] if values.ndim == 2 else values
            object.__setattr__(self, name, values)
            if not np.isfinite(values).all():
                bad = np.flatnonzero(~np.isfinite(values).all(axis=(0, 2)))[:8].tolist()
                raise ValueError(f"{name} of prompts {bad} are not finite")

    @classmethod
    def of_seeds(cls, seeds: Sequence["Judged"]) -> "Judged":
        """Several seeds as one."""
        return cls(*(np.concatenate([getattr(one, name) for one in seeds]) for name in ("scores", "characters")))

    def of_prompts(self, chosen: NDArray[np.bool_]) -> "Judged":
        return Judged(self.scores[:, chosen], self.characters[:, chosen])


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
    p_win_rate: float  # two-sided, that the win rate is 50 %
    p_reward_difference: float  # that ΔR is 0

    @property
    def eligible(self) -> bool:
        """The paper's selection rule: a positive ΔR, and responses that are not much longer."""
        return self.reward_difference.value > 0 and self.length_ratio.value <= LONGEST

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Resamples:
    """Draws of prompts."""

    counts: Floats  # (resamples, n) how often each prompt was drawn

    @classmethod
    def draw(cls, prompts: int, seed: int, resamples: int = RESAMPLES) -> "Resamples":
        drawn = np.random.default_rng(seed).integers(0, prompts, size=(resamples, prompts))
        flat = (drawn + prompts * np.arange(resamples)[:, None]).ravel()
        counts = np.bincount(flat, minlength=resamples * prompts).reshape(resamples, prompts)
        return cls(counts.astype(np.float64))

    def means(self, values: Floats) -> Floats:
        """(resamples,) means of values (n,) over the drawn prompts."""
        means: Floats = self.counts @ values / self.counts.shape[1]
        return means


def spearman(first: Floats, second: Floats) -> float | None:
    """Spearman's ρ alone; None if one side does not vary."""
    rho = float(_spearman(first[None], second[None])[0])
    return None if np.isnan(rho) else rho


def compare(candidate: Judged, baseline: Judged, resamples: Resamples) -> Outcome:
    """The candidate against the baseline on the same prompts, seed by seed and sample by sample.

    Samples of a prompt are averaged first. So what is resampled is a prompt with all its samples, whose chance is in
    the interval.

    >>> ours, theirs = (Judged(np.array(scores), np.full(4, 80.0)) for scores in ([3.0, 1, 2, 5], [1.0, 1, 3, 2]))
    >>> found = compare(ours, theirs, Resamples.draw(prompts=4, seed=0))
    >>> found.wins, found.ties, found.losses, found.win_rate.value
    (2, 1, 1, 62.5)
    """
    games, points = game_points(candidate, baseline), points_of(candidate, baseline)
    difference = (candidate.scores - baseline.scores).mean(axis=-1)  # (s, n)
    ours, theirs = (np.broadcast_to(side.characters.mean(axis=-1), points.shape) for side in (candidate, baseline))
    win_rate, p_win_rate = _mean(points, 50.0, resamples)
    reward_difference, p_reward_difference = _mean(difference, 0.0, resamples)
    return Outcome(
        prompts=difference.shape[-1],
        wins=int((games == WIN).sum()),
        ties=int((games == WIN / 2).sum()),
        losses=int((games == 0).sum()),
        win_rate=win_rate,
        reward_difference=reward_difference,
        length_ratio=_ratio(ours, theirs, resamples),
        p_win_rate=p_win_rate,
        p_reward_difference=p_reward_difference,
    )


def game_points(candidate: Judged, baseline: Judged) -> Floats:
    """(s, n, k) 100 for a win, half of it for a tie."""
    difference = candidate.scores - baseline.scores
    points: Floats = WIN * ((difference > TIE) + (np.abs(difference) <= TIE) / 2)
    return points


def points_of(candidate: Judged, baseline: Judged) -> Floats:
    """(s, n) the mean over samples."""
    mean: Floats = game_points(candidate, baseline).mean(axis=-1)
    return mean


def _mean(values: Floats, null: float, resamples: Resamples) -> tuple[Estimate, float]:
    """The mean of values (s, n), and the p-value of its being `null`: by resampling prompts, if there is one seed."""
    if len(values) == 1:
        draws = resamples.means(values[0])
        return _estimate(float(values.mean()), draws), _two_sided(draws, null)
    mean = MeanOverSeeds.of(values)
    margin = mean.margin()
    return Estimate(mean.value, mean.value - margin, mean.value + margin), mean.p(null)


def _ratio(ours: Floats, theirs: Floats, resamples: Resamples) -> Estimate:
    """The ratio of mean lengths (s, n); over several seeds, the margin is that of its logarithm, linearized."""
    mean, other = (float(_length(each.mean())) for each in (ours, theirs))
    if len(ours) == 1:
        return _estimate(mean / other, _length(resamples.means(ours[0])) / _length(resamples.means(theirs[0])))
    margin = MeanOverSeeds.of(ours / mean - theirs / other).margin()
    return Estimate(mean / other, mean / other * float(np.exp(-margin)), mean / other * float(np.exp(margin)))


def by_domain(candidate: Judged, baseline: Judged, domains: Sequence[str], seed: int) -> dict[str, Outcome]:
    """The same for each domain, resampling prompts within it."""
    names = np.array(domains)
    outcomes = {}
    for name in sorted(set(domains)):
        rows = names == name
        resamples = Resamples.draw(int(rows.sum()), seed)
        outcomes[name] = compare(candidate.of_prompts(rows), baseline.of_prompts(rows), resamples)
    return outcomes


def select(outcomes: Mapping[str, Outcome]) -> str | None:
    """The eligible candidate with the largest ΔR; of equals, the one that wins more often."""
    eligible = {name: outcome for name, outcome in outcomes.items() if outcome.eligible}

    def rank(name: str) -> tuple[float, float]:
        return eligible[name].reward_difference.value, eligible[name].win_rate.value

    return max(eligible, key=rank, default=None)


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction of p-values for being one of many: below 0.05, no more than 5 % of such families contain a
    single false alarm."""
    ranked, worst, corrected = sorted(p, key=lambda name: p[name]), 0.0, dict[str, float]()
    for place, name in enumerate(ranked):
        worst = max(worst, min(1.0, (len(p) - place) * p[name]))
        corrected[name] = worst
    return {name: corrected[name] for name in p}


def _two_sided(draws: Floats, null: float) -> float:
    """How often resamples lie on the other side of the null, doubled; the observed sample counts as one of them."""
    sides = (draws <= null + EQUAL).sum(), (draws >= null - EQUAL).sum()
    return min(1.0, 2 * (1 + int(min(sides))) / (1 + len(draws)))


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
