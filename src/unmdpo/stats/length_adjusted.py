"""What a win rate would be if both answers were equally long, for any judge, and how much a judge likes length.

The win is explained by an intercept and the bounded difference of lengths, tanh(Δ/σ), as in AlpacaEval's
length-controlled win rate; the difficulty of instructions, which that one also knows, is not known here.
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from unmdpo.stats.evaluation import TIE, WIN, Estimate, Floats, Judged, game_points
from unmdpo.stats.few_seeds import MeanOverSeeds

RIDGE = 0.1  # keeps estimates finite where every answer wins; a tenth of one answer's weight
STEPS, NORMAL = 50, 1.96
SELDOM = 0.025  # how seldom one side may be no longer than the other


def length_adjusted(candidate: Judged, baseline: Judged) -> Estimate | None:
    """The win rate at equal length, in percent. None where the data cannot say: if lengths do not differ, or if one
    side is almost always the longer one. The interval allows for comparisons of a prompt, and of a seed, being
    alike."""
    won = game_points(candidate, baseline) / WIN  # (s, n, k)
    longer = np.broadcast_to(candidate.characters - baseline.characters, won.shape)
    spread = longer.std()
    if spread == 0 or min((longer <= 0).mean(), (longer >= 0).mean()) < SELDOM:
        return None
    features = np.stack([np.ones_like(longer), np.tanh(longer / spread)], axis=-1)  # (s, n, k, 2)
    theta = _fit(features.reshape(-1, 2), won.ravel())
    intercept, margin = float(theta[0]), _margin(features, won, theta)
    ends = (100 * float(expit(intercept + side * margin)) for side in (0, -1, 1))
    return Estimate(*ends)


def _fit(features: Floats, won: Floats) -> Floats:
    """Logistic regression by Newton's method; its penalized likelihood is strictly concave."""
    theta = np.zeros(2)
    for _ in range(STEPS):
        chance = expit(features @ theta)
        gradient = features.T @ (won - chance) - RIDGE * theta
        step = np.linalg.solve(_curvature(features, chance), gradient)
        theta = theta + np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-10:
            break
    return theta


def _curvature(features: Floats, chance: Floats) -> Floats:
    curvature: Floats = features.T @ (features * (chance * (1 - chance))[:, None]) + RIDGE * np.eye(2)
    return curvature


def _margin(features: Floats, won: Floats, theta: Floats) -> float:
    """The intercept's, from what every answer adds to it, and no less than the model's own."""
    chance = expit(features @ theta)  # (s, n, k)
    slopes = (features * (won - chance)[..., None]).sum(axis=2)  # (s, n, 2)
    inverse = np.linalg.inv(_curvature(features.reshape(-1, 2), chance.ravel()))
    added = slopes @ inverse[0]  # (s, n)
    if len(added) > 1:
        found = MeanOverSeeds.of(added.size * added).margin()
    else:
        found = NORMAL * float(np.sqrt((added**2).sum()))
    return max(found, NORMAL * float(np.sqrt(inverse[0, 0])))


def longer_preferred(answers: Sequence[Judged]) -> Estimate | None:
    """How often a judge prefers the longer of two answers to one prompt, in percent, over all pairs of answers; a tie
    counts as half. The interval is over prompts."""
    scores, characters = (
        np.concatenate([np.concatenate(getattr(each, name).transpose(2, 0, 1)) for each in answers])  # (answers, n)
        for name in ("scores", "characters")
    )
    agreed, counted = np.zeros((2, scores.shape[1]))
    for place in range(len(scores)):
        length = characters[place] - characters[place + 1 :]  # (others, n)
        preference = scores[place] - scores[place + 1 :]
        same = np.where(np.abs(preference) <= TIE, 0.5, (preference > 0) == (length > 0))
        agreed += (same * (length != 0)).sum(axis=0)
        counted += (length != 0).sum(axis=0)
    return _share(agreed, counted)


def longer_chosen(chosen: Floats, rejected: Floats, prompts: Sequence[str]) -> Estimate | None:
    """The same in preference data: (n,) lengths of responses, and the prompt of each comparison."""
    _, place = np.unique(np.asarray(prompts), return_inverse=True)
    longer, counted = (chosen > rejected).astype(np.float64), (chosen != rejected).astype(np.float64)
    return _share(*(np.bincount(place, values).astype(np.float64) for values in (longer, counted)))


def _share(agreed: Floats, counted: Floats) -> Estimate | None:
    """A ratio of sums over prompts, with its interval by linearization."""
    total = counted.sum()
    if not total:
        return None
    share = agreed.sum() / total
    error = np.sqrt(((agreed - share * counted) ** 2).sum()) / total
    return Estimate(*(100 * float(np.clip(share + side * NORMAL * error, 0, 1)) for side in (0, -1, 1)))
