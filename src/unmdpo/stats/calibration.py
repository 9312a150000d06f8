"""Is a judge as often right as it believes? It believes in the better response by σ of the scores' difference."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

EDGES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Believed(NamedTuple):
    """The pairs with a belief of at least `low` and less than `high`."""

    low: float
    high: float
    pairs: int
    believed: float  # on average
    right: float  # share


class Calibration(NamedTuple):
    error: float  # expected calibration error: mean distance of belief and truth
    bins: list[Believed]


def calibration(differences: NDArray[np.float64]) -> Calibration:
    """From r⁺ − r⁻ of pairs whose better response is known."""
    belief, right = expit(np.abs(differences)), differences > 0
    place = np.clip(np.searchsorted(EDGES, belief, side="right") - 1, 0, len(EDGES) - 2)
    bins = [
        Believed(EDGES[i], EDGES[i + 1], int(mine.sum()), float(belief[mine].mean()), float(right[mine].mean()))
        for i in range(len(EDGES) - 1)
        if (mine := place == i).any()
    ]
    error = sum(part.pairs * abs(part.believed - part.right) for part in bins) / max(1, len(differences))
    return Calibration(error, bins)
