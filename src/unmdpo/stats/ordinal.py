"""The exact ordinal model of signed judgments (appendix "Relation to an Exact Ordinal Model").

A latent V = Δ + q·ξ falls between shared ordered cutpoints; category j is c_j < V ≤ c_{j+1}. Unlike the
margin-exceedance losses, this is a normalized likelihood of whole votes. The fit pools all prompts: cutpoints are
shared, each pair has a gap, each prompt a scale.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Bound = tuple[float | None, float | None]
# Keeps the logs of steps between cutpoints, and of scales, well within double precision.
STEP_BOUND: Bound = (-12.0, 6.0)
SCALE_BOUND: Bound = (-6.0, 6.0)
GRADIENT = 1e-5


def category_probabilities(
    gap: ArrayLike, scale: ArrayLike, cutpoints: ArrayLike, cdf: Callable[[Floats], Floats] = expit
) -> Floats:
    """(…, J) probabilities of the J categories separated by J−1 cutpoints (Eq. ordinal-pmf-appendix)."""
    cuts = _checked(cutpoints, scale)
    location = np.asarray(gap, dtype=np.float64)[..., None]
    inner = cdf((cuts - location) / np.asarray(scale, dtype=np.float64)[..., None])  # (…, J−1)
    shape = (*inner.shape[:-1], 1)
    return np.diff(np.concatenate([np.zeros(shape), inner, np.ones(shape)], axis=-1), axis=-1)


def log_likelihood(category: ArrayLike, gap: ArrayLike, scale: ArrayLike, cutpoints: ArrayLike) -> Floats:
    """(n,) logistic log-probability of each observed category, safe far in the tails."""
    edges = np.concatenate([[-np.inf], _checked(cutpoints, scale), [np.inf]])
    chosen = np.asarray(category, dtype=np.int64)
    if ((chosen < 0) | (chosen >= len(edges) - 1)).any():
        raise ValueError(f"categories run from 0 to {len(edges) - 2}")
    q, location = np.asarray(scale, dtype=np.float64), np.asarray(gap, dtype=np.float64)
    upper, lower = (edges[chosen + 1] - location) / q, (edges[chosen] - location) / q
    return _log_interval(upper, lower)


def _checked(cutpoints: ArrayLike, scale: ArrayLike) -> Floats:
    cuts = np.asarray(cutpoints, dtype=np.float64)
    if (np.diff(cuts) <= 0).any():
        raise ValueError("cutpoints must increase")
    if (np.asarray(scale) <= 0).any():
        raise ValueError("scales must be positive")
    return cuts


def _log_interval(upper: Floats, lower: Floats) -> Floats:
    """log[σ(u) − σ(l)] = log σ(u) + log σ(−l) + log(1 − e^{l−u})."""
    total: Floats = log_expit(upper) + log_expit(-lower) + np.log1p(-np.exp(lower - upper))
    return total


class OrdinalFit(NamedTuple):
    levels: tuple[int, ...]  # the vote values, category by category
    cutpoints: Floats  # (J−1,)
    gaps: Floats  # (pairs,)
    scales: Floats  # (prompts,) geometric mean one
    log_likelihood: float  # per vote, without the penalties
    converged: bool


@dataclass(frozen=True)
class OrdinalModel:
    """Penalized maximum likelihood: Σ log p − gap_penalty·ΣΔ² − scale_penalty·Σ(log q)².

    The likelihood does not change if Δ and the cutpoints shift together, or if Δ, q and the cutpoints are multiplied
    by the same factor. The gap penalty settles the first, fixing the scales' geometric mean at one settles the second;
    the penalties also keep unanimous pairs and one-pair prompts finite. Categories are the levels that occur: if
    votes had to take sides, there is no tie category between them.
    """

    gap_penalty: float = 0.05
    scale_penalty: float = 0.5
    max_iterations: int = 5000

    def fit(self, votes: ArrayLike, pair: ArrayLike, prompt: ArrayLike) -> OrdinalFit:
        """`votes` (n,) signed strengths; `pair` (n,) pair of each vote; `prompt` (pairs,) prompt of each pair."""
        levels, category = np.unique(np.asarray(votes), return_inverse=True)
        if len(levels) < 2:
            raise ValueError("an ordinal fit needs votes in at least two categories")
        prompts, of_pair = np.unique(np.asarray(prompt), return_inverse=True)
        data = _Votes(category, np.asarray(pair, np.int64), of_pair, len(levels), len(prompts))
        start = np.concatenate([data.starting_cutpoints(), np.zeros(data.pairs + data.prompts)])
        bounds: list[Bound] = [(None, None), *[STEP_BOUND] * (len(levels) - 2)]
        bounds += [(None, None)] * data.pairs + [SCALE_BOUND] * data.prompts
        result = minimize(
            self.loss_and_gradient, start, args=(data,), jac=True, method="L-BFGS-B", bounds=bounds,
            options={"maxiter": self.max_iterations, "maxfun": 4 * self.max_iterations,
                     "maxcor": 30, "ftol": 0.0, "gtol": GRADIENT},
        )  # fmt: skip
        cutpoints, gaps, log_scales = data.unpack(result.x)
        scales = np.exp(log_scales)
        fitted = log_likelihood(category, gaps[data.pair], scales[data.vote_prompt], cutpoints)
        return OrdinalFit(
            levels=tuple(int(level) for level in levels),
            cutpoints=cutpoints,
            gaps=gaps,
            scales=scales,
            log_likelihood=float(fitted.mean()),
            converged=self._settled(result.x, data, bounds),
        )

    def _settled(self, x: Floats, data: "_Votes", bounds: list[Bound]) -> bool:
        """Whether the gradient is flat wherever the bounds leave room to move."""
        low = np.array([-np.inf if a is None else a for a, _ in bounds])
        high = np.array([np.inf if b is None else b for _, b in bounds])
        gradient = self.loss_and_gradient(x, data)[1]
        moved = np.clip(x - gradient, low, high) - x
        return bool(np.abs(moved).max() < 100 * GRADIENT)

    def loss_and_gradient(self, x: Floats, data: "_Votes") -> tuple[float, Floats]:
        """Negative penalized log-likelihood and its gradient in the free parameters."""
        cutpoints, gaps, log_scales = data.unpack(x)
        edges = np.concatenate([[-np.inf], cutpoints, [np.inf]])
        q = np.exp(log_scales)[data.vote_prompt]
        upper = (edges[data.category + 1] - gaps[data.pair]) / q
        lower = (edges[data.category] - gaps[data.pair]) / q
        shared = np.exp(lower - upper) / -np.expm1(lower - upper)  # 1/(e^{u−l} − 1), zero if one is infinite
        by_upper = expit(-upper) + shared  # ∂log p/∂u
        by_lower = -expit(lower) - shared
        finite_upper, finite_lower = np.isfinite(upper), np.isfinite(lower)
        by_log_q = -(np.where(finite_upper, upper, 0) * by_upper + np.where(finite_lower, lower, 0) * by_lower)
        by_edge: Floats = np.zeros(len(edges))
        np.add.at(by_edge, data.category + 1, by_upper / q)
        np.add.at(by_edge, data.category, by_lower / q)
        by_gap = -np.bincount(data.pair, (by_upper + by_lower) / q, data.pairs)
        by_scale = np.bincount(data.vote_prompt, by_log_q, data.prompts)
        loss = -_log_interval(upper, lower).sum()
        loss += self.gap_penalty * gaps @ gaps + self.scale_penalty * log_scales @ log_scales
        gradient = data.pack_gradient(
            x, -by_edge[1:-1], -by_gap + 2 * self.gap_penalty * gaps, -by_scale + 2 * self.scale_penalty * log_scales
        )
        return float(loss), gradient


@dataclass(frozen=True)
class _Votes:
    """Votes and the map between free parameters and (cutpoints, gaps, centered log scales).

    Free parameters: the first cutpoint, logs of the steps between cutpoints, gaps, log scales.
    """

    category: Ints  # (n,)
    pair: Ints  # (n,)
    prompt: Ints  # (pairs,)
    categories: int
    prompts: int

    @property
    def vote_prompt(self) -> Ints:
        return self.prompt[self.pair]

    @property
    def pairs(self) -> int:
        return len(self.prompt)

    def starting_cutpoints(self) -> Floats:
        """Logits of the pooled cumulative shares: the fit of a model without gaps."""
        counts = np.bincount(self.category, minlength=self.categories) + 0.5
        shares = np.cumsum(counts)[:-1] / counts.sum()
        cuts = np.log(shares / (1 - shares))
        return np.concatenate([cuts[:1], np.log(np.diff(cuts))])

    def unpack(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        steps = np.concatenate([x[:1], np.exp(x[1 : self.categories - 1])])
        rest = x[self.categories - 1 :]
        log_scales = rest[self.pairs :]
        return np.cumsum(steps), rest[: self.pairs], log_scales - log_scales.mean()

    def pack_gradient(self, x: Floats, by_cut: Floats, by_gap: Floats, by_scale: Floats) -> Floats:
        tails = np.cumsum(by_cut[::-1])[::-1]  # a step moves every later cutpoint
        by_steps = np.concatenate([tails[:1], tails[1:] * np.exp(x[1 : self.categories - 1])])
        return np.concatenate([by_steps, by_gap, by_scale - by_scale.mean()])
