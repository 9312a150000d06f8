"""Arena-Hard-Auto's scores: win rates with its bootstrap, and with its control of style.

Its intervals are the 5 and 95 % quantiles of resampled games. Both games of a prompt, and the three that a strong
verdict counts as, are drawn as if they were independent, so they are narrower than those of this package.
"""

import warnings
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

Floats = NDArray[np.float64]
SEED, DRAWS, CONTROLLED_DRAWS = 42, 1000, 100
LOW, HIGH = 5, 95
WEAK = 1e6  # C, the inverse of a penalty that keeps models which won every game finite


class WinRate(NamedTuple):
    """In percent."""

    value: float
    low: float
    high: float


def win_rate(scores: Floats) -> WinRate:
    """Of games with scores 0, ½ or 1 (n,)."""
    random = np.random.default_rng(SEED)
    means = [scores[random.integers(len(scores), size=len(scores))].mean() for _ in range(DRAWS)]
    low, high = np.percentile(means, [LOW, HIGH])
    return WinRate(*(100 * float(value) for value in (scores.mean(), low, high)))


def style_difference(ours: Floats, theirs: Floats) -> Floats:
    """Features of games (n, 4) from both answers' length, headers, lists and bold texts (n, 4): the relative
    difference of lengths, and of how dense each mark is."""
    difference = np.zeros_like(ours)
    length = ours[:, 0] + theirs[:, 0]
    difference[:, 0] = np.divide(ours[:, 0] - theirs[:, 0], length, out=np.zeros(len(ours)), where=length > 0)
    dense = [side[:, 1:] / np.maximum(side[:, :1], 1) for side in (ours, theirs)]
    difference[:, 1:] = (dense[0] - dense[1]) / (dense[0] + dense[1] + 1)
    return difference


def style_controlled(scores: Mapping[str, Floats], styles: Mapping[str, Floats]) -> dict[str, WinRate]:
    """Win rates of models by a logistic regression on who plays and on style, at the style difference of the average
    game. By model: games (n,) and features (n, 4); all models are fitted together, so each affects the others."""
    outcomes, features = np.concatenate([*scores.values()]), np.concatenate([*styles.values()])
    spread = features.std(axis=0, ddof=1)
    features = np.divide(features - features.mean(axis=0), spread, out=np.zeros_like(features), where=spread > 0)
    place = np.repeat(np.arange(len(scores)), [len(some) for some in scores.values()])
    design = np.hstack([np.eye(len(scores))[place], features])  # (n, models + 4)
    random, n = np.random.default_rng(SEED), len(outcomes)
    drawn = [np.bincount(random.integers(n, size=n), minlength=n) for _ in range(CONTROLLED_DRAWS)]
    rates = np.array([_fitted(design, outcomes, times)[: len(scores)] for times in drawn])  # (draws, models)
    found = 100 * np.percentile(1 / (1 + np.exp(-rates)), [50, LOW, HIGH], axis=0)  # (3, models)
    return {name: WinRate(*map(float, found[:, i])) for i, name in enumerate(scores)}


def _fitted(design: Floats, outcomes: Floats, times: NDArray[np.int64]) -> Floats:
    """Coefficients, each game counted so many times; a tie is half a game won and half a game lost."""
    both, weight = np.vstack([design, design]), np.concatenate([times * outcomes, times * (1 - outcomes)])
    won = np.repeat([1, 0], len(outcomes))
    used = weight > 0
    model = LogisticRegression(C=WEAK, fit_intercept=False, solver="newton-cholesky", max_iter=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a model that won all of its games has no best coefficient
        coefficients: Floats = model.fit(both[used], won[used], weight[used]).coef_[0]
    return coefficients
