"""What a scale is fitted to: units that have a scale, and rows of evidence about them.

A *unit* is a prompt, or a prompt with an unordered pair of responses. Several comparisons may share a unit. Each unit
counts once in centering and regularization, and each valid row once in the data term.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmdpo.core.arrays import as_tensors

VOTE_CATEGORIES = 6  # −3, −2, −1, 1, 2, 3


@dataclass(frozen=True)
class Units:
    """(u,) units on the CPU: raw features, the domain of each (−1: unknown), and its prompt's fold.

    >>> units = Units(torch.zeros(3, 8), folds=torch.tensor([0, 1, 0]))
    >>> len(units), len(units.select(units.folds == 0))
    (3, 2)
    """

    features: Tensor  # (u, d)
    domains: Tensor | None = None  # (u,) int64
    folds: Tensor | None = None  # (u,) int64

    def __post_init__(self) -> None:
        as_tensors(self)
        if self.features.ndim != 2 or not self.features.isfinite().all():
            raise ValueError("features must be a finite (units, dimensions) matrix")
        for name in ("domains", "folds"):
            values = getattr(self, name)
            if values is not None and values.shape != (len(self),):
                raise ValueError(f"{name} must have one entry per unit")
        if self.folds is not None and len(self) and self.folds.min() < 0:
            raise ValueError("folds are numbered from 0")

    def __len__(self) -> int:
        return len(self.features)

    @property
    def domain_ids(self) -> Tensor:
        """(u,) the domains, or a single constant one if none were given."""
        return self.domains if self.domains is not None else torch.zeros(len(self), dtype=torch.int64)

    def select(self, members: Tensor) -> "Units":
        pick = (None if values is None else values[members] for values in (self.domains, self.folds))
        return Units(self.features[members], *pick)


@dataclass(frozen=True)
class Rows:
    """(n,) comparisons: their unit, the scaled log-ratio difference B̃, the strength, and validity.

    Invalid rows (too long or empty) never enter the data term; their units stay in the population.

    >>> rows = Rows(unit=torch.tensor([0, 0, 1]), evidence=torch.tensor([0.5, 2.0, -1.0]), strength=torch.ones(3))
    >>> len(rows), rows.mask.tolist()
    (3, [True, True, True])
    """

    unit: Tensor  # (n,) int64
    evidence: Tensor  # (n,) B̃ = β·A of an out-of-fold pilot; may be NaN for invalid rows
    strength: Tensor  # (n,)
    valid: Tensor | None = None  # (n,) bool
    votes: Tensor | None = None  # (n, 6) counts of −3, −2, −1, 1, 2, 3
    lengths: Tensor | None = None  # (n,) mean response tokens, for diagnostics only
    weight: Tensor | None = None  # (n,) how much each row counts, 1 on average

    def __post_init__(self) -> None:
        as_tensors(self)
        for name in ("unit", "evidence", "strength", "valid", "lengths", "weight"):
            values = getattr(self, name)
            if values is not None and values.shape != (len(self.unit),):
                raise ValueError(f"{name} has shape {tuple(values.shape)}; it should be ({len(self.unit)},)")
        if self.votes is not None and self.votes.shape != (len(self), VOTE_CATEGORIES):
            raise ValueError(f"votes should be ({len(self)}, {VOTE_CATEGORIES}) counts")
        if self.mask.dtype != torch.bool:
            raise ValueError("valid should be a boolean for each row")
        if not self.mask.any():
            raise ValueError("a scale needs at least one valid row")
        if not (self.evidence[self.mask].isfinite().all() and self.strength[self.mask].isfinite().all()):
            raise ValueError("valid rows must have finite evidence and strength")
        if self.unit.min() < 0:
            raise ValueError("units are numbered from 0")

    def __len__(self) -> int:
        return len(self.unit)

    @property
    def mask(self) -> Tensor:
        return self.valid if self.valid is not None else torch.ones(len(self), dtype=torch.bool)

    def weighted(self, losses: Tensor) -> Tensor:
        """(n,) losses of these rows, each as much as the row counts."""
        return losses if self.weight is None else losses * self.weight.to(losses)

    def select(self, members: Tensor) -> "Rows":
        """The rows selected by `members` (bool or indices)."""
        present = {name: values for name, values in vars(self).items() if values is not None}
        return replace(self, **{name: values[members] for name, values in present.items()})

    @property
    def valid_rows(self) -> "Rows":
        return self.select(self.mask)

    def place_in_unit(self) -> Tensor:
        """(n,) 0, 1, … for the rows of each unit, in an order that looks random but does not depend on that of the
        rows."""
        shuffled = torch.argsort(torch.frac(self.evidence.double().abs() * 1e6), stable=True)
        order = shuffled[torch.argsort(self.unit[shuffled], stable=True)]
        counts = torch.bincount(self.unit)
        starts = torch.cumsum(counts, 0) - counts
        place = torch.empty_like(self.unit)
        place[order] = torch.arange(len(self.unit)) - starts[self.unit[order]]
        return place

    def reindexed(self, members: Tensor) -> "Rows":
        """The rows of the units where `members` (u,) is true, with those units renumbered."""
        new = torch.cumsum(members, 0) - 1
        kept = self.select(members[self.unit])
        return replace(kept, unit=new[kept.unit])


def mean_of_valid(values: Sequence[Tensor], valid: Sequence[Tensor]) -> Tensor:
    """(n,) the mean of each row's valid values; NaN where it has none."""
    counted = torch.stack(list(valid))
    sums = torch.where(counted, torch.stack(list(values)), 0.0).sum(dim=0)
    return sums / counted.sum(dim=0)


def mean_of_seeds(seeds: Sequence[Rows]) -> Rows:
    """The same rows with their mean evidence over pilots of several seeds."""
    valid = [rows.mask for rows in seeds]
    mean = mean_of_valid([rows.evidence for rows in seeds], valid)
    return replace(seeds[0], evidence=mean, valid=torch.stack(valid).any(dim=0))
