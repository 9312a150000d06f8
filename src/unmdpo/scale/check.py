"""What is known about a learned scale, in three questions, on prompts that it has not seen.

1. Is it *informative*: does it know which prompts are uncertain? Folds come one after another. The scales of each are
   those of a head that was fitted to the folds before it, and are exchanged at random among its prompts. If features
   say nothing, every order is as likely as the true one, whatever the earlier folds were, so the p-values of folds are
   independent and uniform. (Heads that are fitted to all other folds share their rows: their gains go together, and
   such a test finds too much.)
2. Is it *better* than q ≡ 1? In its own sample every head is, because it has weights to fit noise with. So heads are
   fitted outside each fold and judged inside it, by the loss that they are fitted with, on scales centered there: a
   common factor must not help. The gain has an interval over prompts, whose comparisons are alike.
3. How is it *explained*? A scale can be better without anyone's labels being noisier than others': where pilots move
   further (`evidence_size`), where responses are longer, where labels are stated more strongly. How much of it each of
   these foresees, and what it still gains beyond what falls with the size or goes with length; and whether a step in
   its direction gains if all labels are taken to be equally strong. (Strength cannot be taken out as length is: by the
   paper's model, noise makes labels stronger.)
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from scipy.stats import combine_pvalues, spearmanr
from torch import Tensor

from unmdpo.scale.base import FrozenScale, fold_count, folds_of, with_enough_folds
from unmdpo.scale.data import Rows, Units, mean_of_seeds
from unmdpo.scale.diagnostics import correlation
from unmdpo.scale.evidence_size import foreseen_values, mean_of_units, sizes, split
from unmdpo.scale.fitting import LossesOf, losses_by
from unmdpo.scale.settings import MarginSettings
from unmdpo.scale.worth import expectation

NORMAL, ALPHA = 1.96, 0.05
EXCHANGES, FEWEST = 999, 10  # prompts that a scale may be fitted to
STEP = 0.25  # of log q̂: a scale that strong labels have made too wide still points somewhere
EQUAL = 1e-12  # gains that differ by less differ by rounding
SIZE, LENGTH, STRENGTH, DOMAIN = "how far pilots move", "response length", "label strength", "the domain"
Maker = Callable[[], FrozenScale]


class OwnGain(NamedTuple):
    """What a unit's own rows add to what its features say: the gain from one half of them on the other, per row, and
    how often other units' rows would gain as much."""

    value: float
    chance: float


class Gain(NamedTuple):
    """How much smaller the held-out loss is than with q ≡ 1, or than with another scale."""

    value: float
    error: float  # standard error over prompts

    @property
    def low(self) -> float:
        """The lower end of the 95 % interval."""
        return self.value - NORMAL * self.error

    @property
    def high(self) -> float:
        return self.value + NORMAL * self.error

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


class Explained(NamedTuple):
    """What else a scale goes with."""

    shares: dict[str, float]  # of the variance of log q̂, that each thing foresees
    without: dict[str, Gain]  # what it gains without each, if that could be the reason


@dataclass(frozen=True)
class Check:
    """What is known about a scale."""

    prompts: int
    rows: int
    chance: float  # of being as informative by chance: a p-value
    loss: float  # held out
    loss_of_one: float  # of q ≡ 1 on the same rows
    gain: Gain
    explained: Explained
    halves: float | None  # rank correlation of log q̂ fitted to two halves of every prompt's comparisons
    seeds: list[float]  # the same between pilots' seeds, for every two of them
    own: OwnGain | None = None  # what prompts' own comparisons add

    @property
    def informative(self) -> bool:
        return self.chance <= ALPHA

    @property
    def better(self) -> bool:
        """Than q ≡ 1, on unseen prompts."""
        return self.gain.low > 0

    @property
    def finding(self) -> str:
        """In a few words."""
        if self.better:
            without = self.explained.without
            least = min(without, key=lambda name: without[name].low)
            return "informative and better" if without[least].low > 0 else f"better than q ≡ 1, but mostly {least}"
        if self.own is not None:
            return "better than q ≡ 1 by prompts' own comparisons only"
        if self.gain.high < 0:
            return "worse than q ≡ 1"
        return "informative, not shown to be better than q ≡ 1" if self.informative else "nothing found"

    def to_dict(self) -> dict[str, Any]:
        without = {name: gain._asdict() for name, gain in self.explained.without.items()}
        explained = {"shares": self.explained.shares, "without": without}
        own = self.own and self.own._asdict()
        return asdict(self) | {"gain": self.gain._asdict(), "explained": explained, "own": own}

    @classmethod
    def of_dict(cls, values: dict[str, Any]) -> "Check":
        told = values["explained"]
        explained = Explained(told["shares"], {name: Gain(**gain) for name, gain in told["without"].items()})
        own = values["own"] and OwnGain(**values["own"])
        return cls(**values | {"gain": Gain(**values["gain"]), "explained": explained, "own": own})


def check(make: Maker, units: Units, seeds: Sequence[Rows], own: OwnGain | None = None) -> Check:
    """Checks an estimator on the evidence of pilots, which may have been trained with several `seeds`. `own` is what
    the fitted scale has found in prompts' own comparisons."""
    mean = mean_of_seeds(seeds)
    settings = make().settings
    assert isinstance(settings, MarginSettings), "only scales fitted to margins are checked"
    losses_of = losses_by(settings)
    held_out = out_of_fold_log_scales(make, units, mean)
    one = float(losses_of(mean.valid_rows)(torch.zeros(len(units), dtype=torch.float64)).mean())
    gain = gain_of(losses_of, mean, held_out)
    return Check(
        prompts=int((torch.bincount(mean.valid_rows.unit) > 0).sum()),
        rows=len(mean.valid_rows),
        chance=chance_of_information(make, losses_of, units, mean),
        loss=one - gain.value,
        loss_of_one=one,
        gain=gain,
        explained=explain(losses_of, units, mean, held_out),
        halves=_halves(make, units, mean),
        seeds=_between_seeds(make, units, seeds),
        own=own,
    )


def chance_of_information(make: Maker, losses_of: LossesOf, units: Units, rows: Rows) -> float:
    """The p-value of the first question: folds' p-values together (Stouffer's method), those from more prompts with
    more weight. 1 if nothing was learned."""
    units = with_enough_folds(units)
    folds, values, weights = folds_of(units), list[float](), list[float]()
    for fold in range(1, fold_count(units)):
        before, inside = folds < fold, folds == fold
        told = [bool((there[rows.unit] & rows.mask).any()) for there in (before, inside)]
        if int(before.sum()) < FEWEST or not all(told):
            continue
        log_q = _fitted_elsewhere(make, units, rows, before, inside)
        if bool((log_q.abs() > EQUAL).any()):  # else nothing was learned from the folds before
            values.append(_exchanged(losses_of, rows.valid_rows.reindexed(inside), log_q))
            weights.append(float(before.sum()) ** 0.5)
    if not values:
        return 1.0
    return float(combine_pvalues(values, method="stouffer", weights=weights).pvalue)


def _exchanged(losses_of: LossesOf, rows: Rows, log_q: Tensor) -> float:
    """How often scales (u,) that are exchanged at random among units gain as much as they do, themselves counted."""
    losses, rng = losses_of(rows), torch.Generator().manual_seed(0)
    limit = losses(log_q).mean() + EQUAL
    as_good = sum(
        bool(losses(log_q[torch.randperm(len(log_q), generator=rng)]).mean() <= limit) for _ in range(EXCHANGES)
    )
    return min(1 + as_good, EXCHANGES) / (1 + EXCHANGES)  # never 1, which cannot be combined with others


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
        log_q[~outside] = _fitted_elsewhere(make, units, rows, outside, ~outside)
    return log_q


def _fitted_elsewhere(make: Maker, units: Units, rows: Rows, there: Tensor, here: Tensor) -> Tensor:
    """log q̂ of the units `here`, by an estimator that was fitted to those `there`, centered."""
    fitted = make().fit(with_enough_folds(units.select(there)), rows.reindexed(there))
    log_q = fitted.predict(_as_known(units.select(here), units.select(there))).double().log()
    return log_q - log_q.mean()


def _as_known(units: Units, to: Units) -> Units:
    """With domains that nobody has seen marked as unknown."""
    if units.domains is None or to.domains is None:
        return units
    return replace(units, domains=torch.where(torch.isin(units.domains, to.domains), units.domains, -1))


def gain_of(losses_of: LossesOf, rows: Rows, log_q: Tensor, over: Tensor | None = None) -> Gain:
    """The gain of scales (u,) over q ≡ 1, or over others; its error is from sums over units, whose rows are alike."""
    valid = rows.valid_rows
    losses = losses_of(valid)
    gains = losses(torch.zeros_like(log_q) if over is None else over) - losses(log_q)
    mean = gains.mean()
    sums = torch.zeros(len(log_q), dtype=torch.float64).index_add_(0, valid.unit, gains - mean)
    return Gain(float(mean), float(torch.sqrt((sums**2).sum())) / len(gains))


def explain(losses_of: LossesOf, units: Units, rows: Rows, log_q: Tensor) -> Explained:
    """What held-out scales (u,) go with: things that are foreseen from features and domains, as the scales are."""
    folds, valid, count = folds_of(with_enough_folds(units)), rows.valid_rows, len(units)
    foreseen = {
        SIZE: foreseen_values(units, sizes(rows, count), folds),
        STRENGTH: foreseen_values(units, mean_of_units(valid, valid.strength.double(), count), folds),
    }
    equal = replace(valid, strength=valid.strength.median().expand(len(valid)))
    without = {
        SIZE: gain_of(losses_of, rows, log_q, over=split(log_q, foreseen[SIZE], folds)[0]),
        STRENGTH: gain_of(losses_of, equal, STEP * log_q),
    }
    if valid.lengths is not None:
        foreseen[LENGTH] = foreseen_values(units, mean_of_units(valid, valid.lengths.double().log1p(), count), folds)
        follows = closest(torch.stack([foreseen[LENGTH], foreseen[LENGTH] ** 2], dim=1), log_q)
        without[LENGTH] = gain_of(losses_of, rows, log_q, over=follows)
    shares = {name: correlation(log_q, values) ** 2 for name, values in foreseen.items()}
    return Explained(shares | {DOMAIN: _share_between(log_q, units.domain_ids)}, without)


def closest(columns: Tensor, values: Tensor) -> Tensor:
    """(u,) the linear function of columns (u, k), with a constant, that is closest to the values (u,)."""
    columns = torch.cat([torch.ones_like(columns[:, :1]), columns], dim=1)
    found: Tensor = columns @ torch.linalg.lstsq(columns, values[:, None], driver="gelsd").solution[:, 0]
    return found


def _share_between(values: Tensor, groups: Tensor) -> float:
    """The share of the variance of values (u,) that is between groups (u,)."""
    _, group = torch.unique(groups, return_inverse=True)
    counts = torch.bincount(group)
    means = torch.zeros(len(counts), dtype=values.dtype).index_add_(0, group, values) / counts
    whole = float(values.var(correction=0))
    return float((means[group] - values.mean()).square().mean()) / whole if whole > 0 else 0.0


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
    return float(spearmanr(first.numpy(), second.numpy()).statistic) if varies else None


def _between_seeds(make: Maker, units: Units, seeds: Sequence[Rows]) -> list[float]:
    if len(seeds) < 2:
        return []
    scales = [make().fit(units, rows).q_.log() for rows in seeds]
    found = (_agreement(a, b) for i, a in enumerate(scales) for b in scales[i + 1 :])
    return [value for value in found if value is not None]


def verdict(checked: Check) -> str:
    """In plain words: the finding, and what it rests on."""
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in checked.explained.shares.items())
    without = ", ".join(f"{name} {gain}" for name, gain in checked.explained.without.items())
    said = (
        f"{checked.finding}. On prompts it has not seen: test for being informative, p = {checked.chance:.3f}; loss "
        f"{checked.loss:.4f}, that of q ≡ 1 {checked.loss_of_one:.4f}, a gain of {checked.gain}. Of log q̂, each of "
        f"these foresees by itself: {shares}. Without what each may bring, it gains: {without}"
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
    return f"{said}. {expectation(checked.better)}"
