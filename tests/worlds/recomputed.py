"""The numbers of `stats.evaluation` once more, in another way: rows are looked up and averaged, not counted. For
`verify`, which trusts neither."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import t as student
from sklearn.linear_model import LogisticRegression

from unmdpo.stats.evaluation import EQUAL, RESAMPLES, TIE, Floats, Judged
from unmdpo.stats.length_adjusted import RIDGE

Numbers = dict[str, list[float]]


def recomputed(candidate: Judged, baseline: Judged, seed: int) -> Numbers:
    """Every number of an outcome, as (value, low, high) or by itself; (s, n, k) each side."""
    s, n, k = candidate.scores.shape
    prompts = np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))
    samples = candidate.scores - baseline.scores
    games = np.select([samples > TIE, samples >= -TIE], [100.0, 50.0], 0.0)
    points, differences = (sum(each[:, :, sample] for sample in range(k)) / k for each in (games, samples))
    ours, theirs = (np.broadcast_to(side.characters, games.shape).mean(axis=2) for side in (candidate, baseline))
    ratio = max(ours.mean(), 1) / max(theirs.mean(), 1)
    numbers = {
        "wins": [float((games == 100).sum())],
        "ties": [float((games == 50).sum())],
        "losses": [float((games == 0).sum())],
    }
    if s == 1:
        rates, rewards, mine, yours = (v[0][prompts].mean(axis=1) for v in (points, differences, ours, theirs))
        return numbers | {
            "win_rate": _with_ends(points.mean(), rates),
            "reward_difference": _with_ends(differences.mean(), rewards),
            "length_ratio": _with_ends(ratio, np.maximum(mine, 1) / np.maximum(yours, 1)),
            "p_win_rate": [_p(rates - 50)],
            "p_reward_difference": [_p(rewards)],
        }
    relative = ours / max(ours.mean(), 1) - theirs / max(theirs.mean(), 1)
    apart = _margin(relative, 0.05)
    return numbers | {
        "win_rate": [points.mean(), *(points.mean() + side * _margin(points, 0.05) for side in (-1, 1))],
        "reward_difference": [
            differences.mean(), *(differences.mean() + side * _margin(differences, 0.05) for side in (-1, 1))
        ],
        "length_ratio": [ratio, ratio * np.exp(-apart), ratio * np.exp(apart)],
        "p_win_rate": [_p_over_seeds(points - 50)],
        "p_reward_difference": [_p_over_seeds(differences)],
    }  # fmt: skip


def _margin(values: Floats, chance: float) -> float:
    """Cochran's, from the variances of means of seeds and of prompts."""
    s, n = values.shape
    mean, seeds, prompts = values.mean(), values.mean(axis=1), values.mean(axis=0)
    rest = sum((values[i, j] - seeds[i] - prompts[j] + mean) ** 2 for i in range(s) for j in range(n))
    variances = [seeds.var(ddof=1) / s, max(0.0, prompts.var(ddof=1) - rest / ((s - 1) * (n - 1)) / s) / n]
    quantiles = [student(s - 1).ppf(1 - chance / 2), student(n - 1).ppf(1 - chance / 2)]
    weighted = sum(v * q for v, q in zip(variances, quantiles, strict=True)) / sum(variances)
    return float(weighted * np.sqrt(sum(variances)))


def _p_over_seeds(values: Floats) -> float:
    """By bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _margin(values, middle) > abs(values.mean()) else (low, middle)
    return high


def equal_length(candidate: Judged, baseline: Judged) -> float:
    """The length-adjusted win rate by scikit-learn's logistic regression, every answer once as a win and once as a
    loss."""
    won = np.select([(d := candidate.scores - baseline.scores) > TIE, d >= -TIE], [1.0, 0.5], 0.0).ravel()
    longer = np.broadcast_to(candidate.characters - baseline.characters, candidate.scores.shape).ravel()
    features = np.stack([np.ones_like(longer), np.tanh(longer / longer.std())], axis=1)
    model = LogisticRegression(C=1 / RIDGE, fit_intercept=False, tol=1e-10, max_iter=1000)
    model.fit(np.tile(features, (2, 1)), np.repeat([1, 0], len(won)), sample_weight=np.concatenate([won, 1 - won]))
    return float(100 * model.predict_proba([[1.0, 0.0]])[0, 1])


def corrected(p: Mapping[str, float]) -> dict[str, float]:
    """Holm's p-values by their definition: the largest of the smaller ones, each times how many were left."""
    return {
        name: max(min(1.0, sum(q >= other for q in p.values()) * other) for other in p.values() if other <= value)
        for name, value in p.items()
    }


def _with_ends(value: Any, draws: Floats) -> list[float]:
    return [float(value), *(float(end) for end in np.percentile(draws, [2.5, 97.5]))]


def _p(draws: Floats) -> float:
    sides = [int((draws <= EQUAL).sum()), int((draws >= -EQUAL).sum())]
    return min(1.0, 2 * (1 + min(sides)) / (1 + len(draws)))
