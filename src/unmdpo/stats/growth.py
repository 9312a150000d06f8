"""Evidence from a pilot that was still learning.

A pilot that passes once over the data has not seen a comparison when it meets it, so its log-ratio then is as good as
an out-of-fold one, and costs nothing. But early comparisons meet a policy that has hardly moved: log-ratios grow with
every update. Dividing by their typical size at that time puts all of them on the scale of the last ones; where that
would mean to multiply by much, there is only noise to see, and the comparison is left out.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

LARGEST_GROWTH = 4.0  # times that early evidence may be enlarged
LAST = 0.2  # of the comparisons, whose size the others are given
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


class Grown(NamedTuple):
    evidence: Floats  # (n,) as large as if all had been met at the end
    usable: Booleans  # (n,)


def enlarge(evidence: Floats, update: Integers, valid: Booleans) -> Grown:
    """`evidence` (n,) of comparisons that were met at `update` (n,); only `valid` (n,) ones count. Their typical size
    only ever grows, up to that of the last fifth."""
    last = _size_of_the_last(evidence[valid], update[valid])
    size = np.minimum(_typical_sizes(evidence[valid], update[valid], int(update.max()) + 1), last)[update]  # (n,)
    usable = valid & (size * LARGEST_GROWTH >= last) & (size > 0)
    factor = np.divide(last, size, out=np.ones_like(size), where=usable)
    return Grown(evidence * factor, usable)


def _size_of_the_last(evidence: Floats, update: Integers) -> float:
    """Mean |evidence| of the fifth that was met last: of fewer, it would be a matter of luck."""
    if not len(evidence):
        return 0.0
    late = np.argsort(update, kind="stable")[-max(1, round(LAST * len(update))) :]
    return float(np.abs(evidence[late]).mean())


def _typical_sizes(evidence: Floats, update: Integers, updates: int) -> Floats:
    """(t,) mean |evidence| at each update, made nondecreasing."""
    counts = np.bincount(update, minlength=updates)
    met = counts > 0
    sizes = np.zeros(updates)
    if met.any():
        means = np.bincount(update, weights=np.abs(evidence), minlength=updates)[met] / counts[met]
        sizes[met] = isotonic_regression(means, weights=counts[met]).x
    return np.maximum.accumulate(sizes)  # where nothing was met, as before


def latest(passes: list[Grown], updates: list[Integers]) -> Grown:
    """The evidence of the pass that met a comparison latest, which is the one that knew most."""
    best = np.argmax(updates, axis=0)[None]  # (1, n)
    evidence, usable = (np.take_along_axis(np.stack(part), best, axis=0)[0] for part in zip(*passes, strict=True))
    return Grown(evidence, usable)
