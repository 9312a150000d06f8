"""How large a prompt's evidence is, foreseen from its features.

Pilots move further on some prompts than on others: where answers are long, or the task is soon learned. A scale that
is fitted to margins notices it, though nobody's labels are noisier or cleaner there: once most residuals are positive,
a smaller q loses less. |B| does not depend on who won, so it tells how far pilots moved and not how far labels can be
trusted, and what a scale says beyond it is about the labels. Only a scale that falls with the size is under this
suspicion: noise makes residuals larger, so one that rises with it may well follow noise.
"""

import torch
from scipy.optimize import isotonic_regression
from torch import Tensor
from torch.nn.functional import one_hot

from unmdpo.scale.data import Rows, Units
from unmdpo.scale.features import Standardizer

PENALTIES = tuple(10.0**power for power in range(6))  # of ridge regression, for features of unit variance
SMALLEST = 0.1  # added to |B|, whose logarithm would follow the smallest ones otherwise


def sizes(rows: Rows, units: int) -> Tensor:
    """(u,) log of the mean |evidence| of each unit's valid rows."""
    valid = rows.valid_rows
    return (mean_of_units(valid, valid.evidence.double().abs(), units) + SMALLEST).log()


def mean_of_units(rows: Rows, values: Tensor, units: int) -> Tensor:
    """(u,) the mean of each unit's values (n,); units that have no rows get the mean of the others."""
    sums = torch.zeros(units, dtype=torch.float64).index_add_(0, rows.unit, values)
    counts = torch.bincount(rows.unit, minlength=units)
    means = sums / counts.clamp(min=1)
    return torch.where(counts > 0, means, means[counts > 0].mean())


def foreseen_values(units: Units, known: Tensor, folds: Tensor) -> Tensor:
    """(u,) what a ridge regression on the features and domains of units in other folds foresees."""
    found = torch.zeros(len(units), dtype=torch.float64)
    columns = torch.cat([units.features, one_hot(units.domain_ids.clamp(min=0)).to(units.features)], dim=1)
    for fold in range(int(folds.max()) + 1):
        inside = folds == fold
        if inside.any() and not inside.all():
            found[inside] = regress(columns[~inside], known[~inside], columns[inside])
    return found


def regress(features: Tensor, values: Tensor, new: Tensor) -> Tensor:
    """(m,) predictions for `new` (m, d), with the penalty of the least generalized cross-validation error."""
    standardize = Standardizer.fit(features)
    x, mean = standardize(features).double(), values.mean()
    u, s, axes = torch.linalg.svd(x, full_matrices=False)
    share, weights = u.T @ (values - mean), list[tuple[float, Tensor]]()
    for penalty in PENALTIES:
        kept = s**2 / (s**2 + penalty)
        error = ((values - mean - u @ (kept * share)) ** 2).sum() / (len(values) - kept.sum()) ** 2
        weights.append((float(error), s / (s**2 + penalty) * share))
    _, best = min(weights, key=lambda one: one[0])
    predicted: Tensor = standardize(new).double() @ (axes.T @ best)
    return predicted


def split(log_q: Tensor, size: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """log q (u,) as the falling function of `size` (u,) that is closest to it within its group, and the rest."""
    follows = torch.zeros_like(log_q)
    for group in range(int(groups.max()) + 1):
        inside = (groups == group).nonzero().flatten()
        if len(inside):
            ordered = inside[size[inside].argsort(stable=True)]
            falling = isotonic_regression(log_q[ordered].numpy(), increasing=False).x
            follows[ordered] = torch.from_numpy(falling.copy()).to(log_q)
    return follows, log_q - follows
