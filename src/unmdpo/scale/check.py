"""Is a learned scale real? Its loss on prompts that it has not seen, against q ≡ 1.

In its own sample every head beats q ≡ 1, because it has weights to fit noise with. So heads are fitted outside each
fold and judged inside it, by the loss that they are fitted with, on scales centered there: a common factor must not
help. The gain has an interval over prompts, whose comparisons are alike. And the same scales are exchanged at random
among the prompts of a fold: if features say nothing about a prompt's comparisons, any order is as likely as the true
one, so this test is exact. It sees smaller effects than the interval does, since what orders have in common cancels.

A scale can be better than q ≡ 1 without anyone's labels being noisier than others': where pilots move further, all
residuals are larger. So what a scale says beyond the size of the evidence must gain as well (`scale/size.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unmdpo.scale.base import FrozenScale, fold_count, folds_of, with_enough_folds
from unmdpo.scale.data import Rows, Units, mean_of_seeds
from unmdpo.scale.diagnostics import correlation
from unmdpo.scale.evidence_size import foreseen_sizes, split
from unmdpo.scale.fitting import LossesOf, losses_by
from unmdpo.scale.settings import MarginSettings

NORMAL, ALPHA = 1.96, 0.05
EXCHANGES, FEWEST = 999, 10  # prompts that a scale may be fitted to
EQUAL = 1e-12  # gains that differ by less differ by rounding
Maker = Callable[[], FrozenScale]


class OwnGain(NamedTuple):
    """What a unit's own rows add to what its features say: the gain from one half of them on the other, per row, and
    how often other units' rows would gain as much."""

    value: float
    chance: float


class Beyond(NamedTuple):
    """The gain of a scale over the part of it that falls with the size of the evidence, and how often the rest,
    exchanged among units, gains as much."""

    value: float
    chance: float

    @property
    def clear(self) -> bool:
        return self.value > 0 and self.chance <= ALPHA


class Gain(NamedTuple):
    """How much smaller the held-out loss is than with q ≡ 1."""

    value: float
    error: float  # standard error over prompts

    @property
    def low(self) -> float:
        """The lower end of the 95 % interval."""
        return self.value - NORMAL * self.error

    @property
    def high(self) -> float:
        return self.value + NORMAL * self.error


@dataclass(frozen=True)
class Check:
    """What is known about whether a scale is real."""

    prompts: int
    rows: int
    loss: float  # held out
    loss_of_one: float  # of q ≡ 1 on the same rows
    gain: Gain
    halves: float | None  # rank correlation of log q̂ fitted to two halves of every prompt's comparisons
    seeds: list[float]  # the same between pilots' seeds, for every two of them
    exchanged: float  # mean gain of the same scales, given to other prompts at random
    chance: float  # how often those gain as much: the p-value of a permutation test
    beyond: Beyond  # what is left of the gain beyond the size of the evidence
    own: OwnGain | None = None  # what prompts' own comparisons add

    @property
    def real(self) -> bool:
        """Better than q ≡ 1 on unseen prompts, or on unseen comparisons of seen ones: not by chance, and not only
        because pilots move further on some prompts than on others."""
        return (self.better and self.beyond.clear) or self.own is not None

    @property
    def better(self) -> bool:
        return self.gain.value > 0 and self.chance <= ALPHA

    def to_dict(self) -> dict[str, Any]:
        parts = {"gain": self.gain, "beyond": self.beyond, "own": self.own}
        return asdict(self) | {name: part and part._asdict() for name, part in parts.items()}

    @classmethod
    def of_dict(cls, values: dict[str, Any]) -> "Check":
        own = values["own"] and OwnGain(**values["own"])
        return cls(**values | {"gain": Gain(**values["gain"]), "beyond": Beyond(**values["beyond"]), "own": own})


def check(make: Maker, units: Units, seeds: Sequence[Rows], own: OwnGain | None = None) -> Check:
    """Checks an estimator on the evidence of pilots, which may have been trained with several `seeds`. `own` is what
    the fitted scale has found in prompts' own comparisons."""
    mean = mean_of_seeds(seeds)
    settings = make().settings
    assert isinstance(settings, MarginSettings), "only scales fitted to margins are checked"
    losses_of = losses_by(settings)
    held_out = out_of_fold_log_scales(make, units, mean)
    one = float(losses_of(mean.valid_rows)(torch.zeros(len(units), dtype=torch.float64)).mean())
    value = gain_of(losses_of, mean, held_out)
    exchanged, chance = exchanged_gain(losses_of, mean, held_out, folds_of(with_enough_folds(units)))
    return Check(
        prompts=int((torch.bincount(mean.valid_rows.unit) > 0).sum()),
        rows=len(mean.valid_rows),
        loss=one - value.value,
        loss_of_one=one,
        gain=value,
        halves=_halves(make, units, mean),
        seeds=_between_seeds(make, units, seeds),
        exchanged=exchanged,
        chance=chance,
        beyond=beyond_size(losses_of, units, mean, held_out),
        own=own,
    )


def out_of_fold_log_scales(make: Maker, units: Units, rows: Rows) -> Tensor:
    """(u,) log q̂ of every unit, from an estimator that was fitted outside its fold, centered in each fold."""
    units = with_enough_folds(units)
    folds, log_q = folds_of(units), torch.full((len(units),), torch.nan, dtype=torch.float64)
    for fold in range(fold_count(units)):
        outside = folds != fold
        if outside.all():
            continue  # nobody is in this fold
        if int(outside.sum()) < FEWEST or not (outside[rows.unit] & rows.mask).any():
            log_q[~outside] = 0.0  # too little to learn from
            continue
        fitted = make().fit(with_enough_folds(units.select(outside)), rows.reindexed(outside))
        inside = fitted.predict(_as_known(units.select(~outside), units.select(outside))).double().log()
        log_q[~outside] = inside - inside.mean()
    return log_q


def _as_known(units: Units, to: Units) -> Units:
    """With domains that nobody has seen marked as unknown."""
    if units.domains is None or to.domains is None:
        return units
    return replace(units, domains=torch.where(torch.isin(units.domains, to.domains), units.domains, -1))


def gain_of(losses_of: LossesOf, rows: Rows, log_q: Tensor) -> Gain:
    """The gain of scales (u,) over q ≡ 1; its error is from sums over units, whose rows are alike."""
    valid = rows.valid_rows
    losses = losses_of(valid)
    gains = losses(torch.zeros_like(log_q)) - losses(log_q)
    mean = gains.mean()
    sums = torch.zeros(len(log_q), dtype=torch.float64).index_add_(0, valid.unit, gains - mean)
    return Gain(float(mean), float(torch.sqrt((sums**2).sum())) / len(gains))


def exchanged_gain(
    losses_of: LossesOf, rows: Rows, log_q: Tensor, folds: Tensor, kept: Tensor | None = None
) -> tuple[float, float]:
    """The mean gain of scales (u,) that were exchanged at random within folds, and how often it is as large as the
    true one, which counts as one of them. A part that is `kept` (u,), if any, stays where it is."""
    losses, rng = losses_of(rows.valid_rows), torch.Generator().manual_seed(0)
    kept = torch.zeros_like(log_q) if kept is None else kept
    grouped, of_kept = torch.argsort(folds, stable=True), losses(kept).mean()
    gains = []
    for _ in range(EXCHANGES):
        other = kept.clone()
        other[grouped] += log_q[torch.argsort(folds + torch.rand(len(folds), generator=rng))]
        gains.append(of_kept - losses(other).mean())
    found, true = torch.stack(gains), of_kept - losses(kept + log_q).mean()
    as_large = int((found >= true - EQUAL).sum())
    return float(found.mean()), (1 + as_large) / (1 + EXCHANGES)


def beyond_size(losses_of: LossesOf, units: Units, rows: Rows, log_q: Tensor) -> Beyond:
    """What held-out scales (u,) gain beyond the size of the evidence."""
    folds = folds_of(with_enough_folds(units))
    follows, rest = split(log_q, foreseen_sizes(units, rows, folds), folds)
    losses = losses_of(rows.valid_rows)
    gain = float((losses(follows) - losses(log_q)).mean())
    return Beyond(gain, exchanged_gain(losses_of, rows, rest, folds, kept=follows)[1])


def _halves(make: Maker, units: Units, rows: Rows) -> float | None:
    """Rank correlation of the scales fitted to two halves of the comparisons; None if no unit has two, or if q ≡ 1."""
    valid = rows.valid_rows
    place = valid.place_in_unit()
    if not (place > 0).any():
        return None
    first, second = (make().fit(units, valid.select(place % 2 == side)).q_.log() for side in (0, 1))
    repeated = torch.bincount(valid.unit, minlength=len(units)) > 1
    return _agreement(first[repeated], second[repeated])


def _agreement(first: Tensor, second: Tensor) -> float | None:
    """Rank correlation; None if one of them does not vary."""
    varies = all(bool((values != values[0]).any()) for values in (first, second))
    return rank_correlation(first, second) if varies else None


def _between_seeds(make: Maker, units: Units, seeds: Sequence[Rows]) -> list[float]:
    if len(seeds) < 2:
        return []
    scales = [make().fit(units, rows).q_.log() for rows in seeds]
    found = (_agreement(a, b) for i, a in enumerate(scales) for b in scales[i + 1 :])
    return [value for value in found if value is not None]


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's, with mean ranks for ties; 0 if one of them does not vary."""
    return correlation(_ranks(a), _ranks(b))


def _ranks(values: Tensor) -> Tensor:
    ordered = values.contiguous().sort().values
    below, upto = (torch.searchsorted(ordered, values.contiguous(), right=right) for right in (False, True))
    return (below + upto + 1).double() / 2


def verdict(checked: Check) -> str:
    """In plain words."""
    gain = checked.gain
    said = (
        f"on prompts it has not seen, its loss is {checked.loss:.4f}, and that of q ≡ 1 {checked.loss_of_one:.4f}: "
        f"a gain of {gain.value:.4f} [{gain.low:.4f}, {gain.high:.4f}]. Permuted among prompts, the same "
        f"scales gain {checked.exchanged:.4f}, permutation p = {checked.chance:.3f}"
    )
    if checked.halves is not None:
        said += f". Two halves of the comparisons agree on it with rank correlation {checked.halves:.2f}"
    if checked.seeds:
        said += f", pilots of two seeds with {sum(checked.seeds) / len(checked.seeds):.2f}"
    if checked.own is not None:
        said += (
            f". A prompt's own comparisons add to it: from one half of them to the other, a gain of "
            f"{checked.own.value:.4f}, permutation p = {checked.own.chance:.3f}"
        )
    if checked.better:
        said += (
            f". Beyond how far pilots move on a prompt, it gains {checked.beyond.value:.4f}, "
            f"permutation p = {checked.beyond.chance:.3f}"
        )
    if checked.real:
        whence = "" if checked.better and checked.beyond.clear else ", by prompts' own comparisons only"
        return f"real{whence}: {said}"
    if checked.better:
        return f"better than q ≡ 1, but only because pilots move further on some prompts than on others: {said}"
    return f"{'worse than' if gain.high < 0 else 'not better than'} q ≡ 1: {said}"
