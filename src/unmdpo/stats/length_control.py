"""AlpacaEval's length-controlled win rate, `length_controlled_v1`.

A logistic regression without an intercept explains each preference by how much longer one answer is, how hard the
instruction is, and the model itself; the win rate is what it predicts for equal lengths. Annotations of a baseline
that was prompted to be short or long keep the length effect near its known value.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

Floats = NDArray[np.float64]
SPLITS, SEED = 5, 123
GAMED_WEIGHT = 0.2 / 2  # the regularization weight, shared by two gamed baselines
STRENGTHS = np.logspace(-4, 4, 10)  # C, the inverse of the L1 penalty


@dataclass(frozen=True)
class GamedBaseline:
    """Annotations of the baseline against itself, prompted to be concise or verbose; (m,) each."""

    preference: Floats  # probability that the second answer is preferred
    length_difference: Floats  # standardized, first minus second
    difficulty: Floats


@dataclass(frozen=True)
class LengthControlled:
    win_rate: float  # percent
    standard_error: float
    raw_win_rate: float
    strength: float  # the C that cross-validation chose
    coefficients: tuple[float, float, float]  # length, difficulty, model


def length_controlled(
    preference: Floats, baseline_length: Floats, model_length: Floats, difficulty: Floats, gamed: GamedBaseline
) -> LengthControlled:
    """`preference` (n,) in [0, 1] is for the model; lengths are in characters; answers that were not judged (NaN) are
    left out of everything."""
    judged = ~np.isnan(preference)
    preference, difficulty = preference[judged], difficulty[judged]
    difference = (baseline_length - model_length)[judged]
    spread = difference.std(ddof=1)
    if not np.isfinite(spread) or spread == 0:
        raise ValueError("lengths do not differ, so there is nothing to control for")
    ours = _features(difference / spread, difficulty, of_model=1.0)
    theirs = _features(gamed.length_difference, gamed.difficulty, of_model=0.0)
    features = np.concatenate([theirs, ours])
    target = np.concatenate([gamed.preference, preference])
    weight = np.concatenate([np.full(len(theirs), GAMED_WEIGHT), np.ones(len(ours))])
    known = ~np.isnan(target)  # of the gamed baseline, too
    features, target, weight = features[known], target[known], weight[known]
    strength = _best_strength(features, target, weight)
    model = _fit(features, target, weight, strength, np.random.RandomState(SEED))
    equal = model.predict_proba(_features(np.zeros(len(preference)), difficulty, of_model=1.0))[:, 1]
    length, hardness, itself = (float(value) for value in model.coef_[0])
    return LengthControlled(
        win_rate=100 * float(equal.mean()),
        standard_error=100 * float(equal.std(ddof=1) / np.sqrt(len(equal))),
        raw_win_rate=100 * float(preference.mean()),
        strength=strength,
        coefficients=(length, hardness, itself),
    )


def _features(length_difference: Floats, difficulty: Floats, of_model: float) -> Floats:
    """(n, 3) bounded length difference, difficulty, and whether the answer is the model's."""
    columns = [np.tanh(length_difference), difficulty, np.full(len(difficulty), of_model)]
    return np.stack(columns, axis=1)


def _fit(
    features: Floats, target: Floats, weight: Floats, strength: float, rng: np.random.RandomState
) -> LogisticRegression:
    """Probabilities as targets: each row is used once as a win and once as a loss, weighted by their shares."""
    model = LogisticRegression(C=strength, l1_ratio=1.0, solver="liblinear", fit_intercept=False, random_state=rng)
    labels = np.repeat([1, 0], len(target))
    weights = np.concatenate([weight * target, weight * (1 - target)])
    return model.fit(np.concatenate([features, features]), labels, sample_weight=weights)


def _best_strength(features: Floats, target: Floats, weight: Floats) -> float:
    """The C with the smallest weighted log-loss over five folds of rows."""
    rows = np.arange(len(target))
    losses = np.zeros(len(STRENGTHS))
    # both copies of a row are in one fold, as if rows were doubled before splitting
    folds = GroupKFold(SPLITS).split(np.concatenate([rows, rows]), groups=np.concatenate([rows, rows]))
    for inside, outside in folds:
        seen, held_out = (np.unique(part % len(rows)) for part in (inside, outside))
        rng = np.random.RandomState(SEED)  # one per fold's whole path, as in scikit-learn's search
        for place, strength in enumerate(STRENGTHS):
            model = _fit(features[seen], target[seen], weight[seen], float(strength), rng)
            predicted = model.predict_proba(features[held_out])[:, 1].clip(1e-15, 1 - 1e-15)
            y = target[held_out]
            surprise = -(y * np.log(predicted) + (1 - y) * np.log(1 - predicted))
            losses[place] += (weight[held_out] * surprise).mean() / SPLITS
    return float(STRENGTHS[np.argmin(losses)])
