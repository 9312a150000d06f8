"""The exact ordinal model of signed judgments (appendix "Relation to an Exact Ordinal Model").

A latent V = Δ + q·ξ falls between shared ordered cutpoints; category j is c_j < V ≤ c_{j+1}. Unlike the
margin-exceedance losses, this is a normalized likelihood of whole votes. The paper does not fit it, and neither do we.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

Floats = NDArray[np.float64]


def category_probabilities(
    gap: ArrayLike, scale: ArrayLike, cutpoints: ArrayLike, cdf: Callable[[Floats], Floats] = expit
) -> Floats:
    """(…, J) probabilities of the J categories separated by J−1 cutpoints (Eq. ordinal-pmf-appendix)."""
    cuts, q = np.asarray(cutpoints, dtype=np.float64), np.asarray(scale, dtype=np.float64)
    if (np.diff(cuts) <= 0).any():
        raise ValueError("cutpoints must increase")
    if (q <= 0).any():
        raise ValueError("scales must be positive")
    location = np.asarray(gap, dtype=np.float64)[..., None]
    inner = cdf((cuts - location) / q[..., None])  # (…, J−1)
    shape = (*inner.shape[:-1], 1)
    return np.diff(np.concatenate([np.zeros(shape), inner, np.ones(shape)], axis=-1), axis=-1)
