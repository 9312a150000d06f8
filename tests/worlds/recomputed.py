"""The numbers of `stats.evaluation` once more, in another way: rows are looked up and averaged, not counted. For
`verify`, which trusts neither."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from unmdpo.stats.evaluation import EQUAL, RESAMPLES, TIE, Floats, Judged, seed_share
from unmdpo.stats.length_adjusted import RIDGE

Numbers = dict[str, list[float]]


def recomputed(candidate: Judged, baseline: Judged, seed: int) -> Numbers:
    """Every number of an outcome that resampling gives, as (value, low, high) or by itself; (s, n) each side."""
    s, n = candidate.scores.shape
    prompts = np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))
    seeds = np.random.default_rng([seed, s]).integers(0, s, (RESAMPLES, max(1, s - 1)))

    def draws(values: Floats) -> Floats:
        """(resamples,) means over drawn prompts, moved by how far drawn seeds are from all."""
        whole, levels = values.mean(axis=0), values.mean(axis=1)
        moved = (levels[seeds].mean(axis=1) - levels.mean()) * (seed_share(values) if s > 1 else 0.0)
        means: Floats = whole[prompts].mean(axis=1) + moved
        return means

    differences = candidate.scores - baseline.scores
    points = np.select([differences > TIE, differences >= -TIE], [100.0, 50.0], 0.0)
    ours, theirs = (np.broadcast_to(side.characters, points.shape) for side in (candidate, baseline))
    rates, rewards = draws(points), draws(differences)
    ratio = np.maximum(draws(ours), 1) / np.maximum(draws(theirs), 1)
    return {
        "wins": [float((points == 100).sum())],
        "ties": [float((points == 50).sum())],
        "losses": [float((points == 0).sum())],
        "win_rate": _with_ends(points.mean(), rates),
        "reward_difference": _with_ends(differences.mean(), rewards),
        "length_ratio": _with_ends(max(ours.mean(), 1) / max(theirs.mean(), 1), ratio),
        "p_win_rate": [_p(rates - 50)],
        "p_reward_difference": [_p(rewards)],
    }


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
