"""Does a stronger preference predict that another annotator agrees? (Appendix "Audit of Preference Strength".)

Leave one annotator out: if all the others agree on the direction, the size of their mean strength is the evidence, and
whether the held-out annotator agrees with them is the outcome.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unmdpo.audit.votes import INSTEAD, PARTITION_SEED, Partitions, Record, read_partitions
from unmdpo.core.errors import UserError
from unmdpo.data.reading import RowsSettings

Floats = NDArray[np.float64]

BOOTSTRAPS, PERMUTATIONS = 5_000, 10_000
ANNOTATORS = 3  # of a comparison, so that two can be asked about the third
SEEDS = {"train": (260822, 260823), "development": (260832, 260833)}  # bootstrap, permutation
MIN_EXTREME_VOTES, MAX_P = 50, 0.05
TOLERANCE = 1e-12  # for correlations: equal ones differ by rounding in a sum over all records
CHUNK = 4_000_000  # random numbers drawn at a time


@dataclass(frozen=True)
class HeldOut:
    """Every eligible held-out vote, as parallel arrays."""

    evidence: Floats  # (n,) e_{j,−h}
    agrees: NDArray[np.bool_]  # (n,) I_{jh}
    record: NDArray[np.int64]  # (n,) index of the record
    prompt: NDArray[np.int64]  # (n,) index of the prompt
    record_domain: NDArray[np.int64]  # (records,)

    @property
    def bins(self) -> dict[str, NDArray[np.bool_]]:
        low, high = self.evidence <= 1.5, self.evidence >= 2.5
        return {"low [1, 1.5]": low, "middle (1.5, 2.5)": ~low & ~high, "high [2.5, 3]": high}


class Bin(NamedTuple):
    name: str
    votes: int
    prompts: int
    mean_evidence: float | None
    agreement: float | None
    interval: tuple[float, float] | None  # Wilson, 95%


class PartitionResult(NamedTuple):
    records: int
    eligible_records: int
    votes: int
    zero_votes: int  # votes for "the same", which have no direction and are left out
    bins: list[Bin]
    contrast: float | None  # high minus low agreement
    contrast_interval: tuple[float, float] | None  # prompt-clustered bootstrap, 95%
    correlation: float | None  # between record-level evidence and agreement
    p_value: float | None


@dataclass(frozen=True)
class StrengthAudit:
    prompts: dict[str, int]
    duplicates: int
    train: PartitionResult
    development: PartitionResult
    criterion: dict[str, bool]
    skipped: tuple[str, ...] = ()  # what was wrong with each unreadable row
    source: str = ""  # that read the data

    @property
    def verdict(self) -> str:
        """What it means for training on strengths."""
        if self.passed:
            return (
                "Stronger preferences predict that another annotator agrees: strengths say something here, so "
                "objectives that use them have something to learn from."
            )
        if self.train.correlation is None:
            return (
                "It cannot be seen here whether stronger preferences predict agreement: the strength of the others' "
                "votes, or whether the last one agrees, never varies."
            )
        failed = [condition for condition, met in self.criterion.items() if not met]
        return (
            "It is not shown that stronger preferences predict agreement here, so strengths may be noise. "
            f"Not met: {'; '.join(failed)}."
        )

    @property
    def passed(self) -> bool:
        return all(self.criterion.values())

    def to_dict(self) -> dict[str, Any]:
        parts = {
            part: result._asdict() | {"bins": [row._asdict() for row in result.bins]}
            for part, result in (("train", self.train), ("development", self.development))
        }
        return {"audit": "strength", **vars(self), "passed": self.passed, "verdict": self.verdict, **parts}


def audit_strength(wanted: RowsSettings, *, seed: int = PARTITION_SEED) -> StrengthAudit:
    """The whole audit of one dataset; its locked test labels are never parsed."""
    partitions = read_partitions(wanted, seed=seed)
    several = sum(len(record.votes) >= ANNOTATORS for records in partitions.records.values() for record in records)
    if not several:
        raise UserError(f"{wanted.path}: no comparison has the votes of {ANNOTATORS} annotators or more; {INSTEAD}")
    return analyse(partitions)


def analyse(partitions: Partitions) -> StrengthAudit:
    train, development = (
        analyse_partition(partitions.records[part], *SEEDS[part]) for part in ("train", "development")
    )
    return StrengthAudit(
        prompts=partitions.prompts,
        duplicates=partitions.duplicates,
        train=train,
        development=development,
        criterion=criterion(train, development),
        skipped=partitions.skipped,
        source=partitions.source,
    )


def criterion(train: PartitionResult, development: PartitionResult) -> dict[str, bool]:
    """The prespecified conditions for success; a condition that cannot be computed is not met."""
    low, _, high = development.bins
    interval = development.contrast_interval
    return {
        "positive association in training": (train.correlation or 0) > 0,
        "positive association in development": (development.correlation or 0) > 0,
        f"development p ≤ {MAX_P}": development.p_value is not None and development.p_value <= MAX_P,
        f"≥ {MIN_EXTREME_VOTES} development votes in each extreme bin": min(low.votes, high.votes)
        >= MIN_EXTREME_VOTES,
        "positive development contrast, interval excludes 0": (development.contrast or 0) > 0
        and interval is not None
        and interval[0] > 0,
    }


def analyse_partition(records: Sequence[Record], bootstrap_seed: int, permutation_seed: int) -> PartitionResult:
    held_out = hold_out(records)
    bins = [describe_bin(held_out, name, members) for name, members in held_out.bins.items()]
    contrast, interval = clustered_contrast(held_out, bootstrap_seed)
    correlation, p_value = permutation_test(held_out, permutation_seed)
    return PartitionResult(
        records=len(records),
        eligible_records=len(held_out.record_domain),
        votes=len(held_out.evidence),
        zero_votes=sum(vote == 0 for record in records for vote in record.votes),
        bins=bins,
        contrast=contrast,
        contrast_interval=interval,
        correlation=correlation,
        p_value=p_value,
    )


def hold_out(records: Sequence[Record]) -> HeldOut:
    """Each vote in a record of three or more whose other votes agree on the direction (Eq. I_jh)."""
    evidence, agrees, owner, prompt, record_domain = [], [], [], [], list[int]()
    prompts: dict[str, int] = {}
    domains = {name: i for i, name in enumerate(sorted({record.domain for record in records}))}
    for record in records:
        votes = [vote for vote in record.votes if vote != 0]
        eligible = len(votes) >= ANNOTATORS and held_out_votes(votes)
        if not eligible:
            continue
        for size, agreement in eligible:
            evidence.append(size)
            agrees.append(agreement)
            owner.append(len(record_domain))
            prompt.append(prompts.setdefault(record.prompt_hash, len(prompts)))
        record_domain.append(domains[record.domain])
    return HeldOut(
        evidence=np.array(evidence, dtype=np.float64),
        agrees=np.array(agrees, dtype=np.bool_),
        record=np.array(owner, dtype=np.int64),
        prompt=np.array(prompt, dtype=np.int64),
        record_domain=np.array(record_domain, dtype=np.int64),
    )


def held_out_votes(votes: Sequence[int]) -> list[tuple[float, bool]]:
    """(evidence, agreement) of every eligible held-out vote."""
    positive, total, eligible = sum(vote > 0 for vote in votes), sum(votes), []
    for vote in votes:
        others, others_positive = len(votes) - 1, positive - (vote > 0)
        if others_positive in (0, others):
            eligible.append((abs(total - vote) / others, (vote > 0) == (others_positive == others)))
    return eligible


def describe_bin(held_out: HeldOut, name: str, members: NDArray[np.bool_]) -> Bin:
    votes = int(members.sum())
    if votes == 0:
        return Bin(name, 0, 0, None, None, None)
    from scipy.stats import binomtest  # noqa: PLC0415 - two seconds, which `unmdpo look` need not wait for

    agreeing = int(held_out.agrees[members].sum())
    interval = binomtest(agreeing, votes).proportion_ci(method="wilson")
    return Bin(
        name=name,
        votes=votes,
        prompts=len(np.unique(held_out.prompt[members])),
        mean_evidence=float(held_out.evidence[members].mean()),
        agreement=agreeing / votes,
        interval=(float(interval.low), float(interval.high)),
    )


def clustered_contrast(held_out: HeldOut, seed: int) -> tuple[float | None, tuple[float, float] | None]:
    """High-minus-low agreement and its 95% percentile interval over resampled prompts."""
    low, _, high = held_out.bins.values()
    if not low.any() or not high.any():
        return None, None
    prompts = int(held_out.prompt.max()) + 1
    sums = np.stack(  # (4, prompts): agreeing and all votes, high and low
        [
            np.bincount(held_out.prompt, weights, prompts)
            for weights in (held_out.agrees & high, high, held_out.agrees & low, low)
        ]
    )
    rng, totals = np.random.default_rng(seed), np.empty((4, BOOTSTRAPS))
    for replicate in range(BOOTSTRAPS):
        drawn = np.bincount(rng.integers(0, prompts, prompts), minlength=prompts)
        totals[:, replicate] = sums @ drawn
    with np.errstate(invalid="ignore"):  # a resample may miss a small bin entirely
        contrasts = totals[0] / totals[1] - totals[2] / totals[3]
    ends = np.nanpercentile(contrasts, [2.5, 97.5])
    point = held_out.agrees[high].mean() - held_out.agrees[low].mean()
    return float(point), (float(ends[0]), float(ends[1]))


def permutation_test(held_out: HeldOut, seed: int) -> tuple[float | None, float | None]:
    """Pooled record-level Pearson correlation and its one-sided p-value, permuting within domains.

    A permutation within domains changes neither mean nor variance, so only Σ e·a is recomputed.
    """
    records = len(held_out.record_domain)
    counts = np.bincount(held_out.record, minlength=records)
    evidence = np.bincount(held_out.record, held_out.evidence, records) / counts
    agreement = np.bincount(held_out.record, held_out.agrees, records) / counts
    spread = records * evidence.std() * agreement.std() if records else 0.0
    if spread <= 1e-12 * records:
        return None, None
    centered = agreement - agreement.mean()
    observed = float(evidence @ centered) / spread
    rng, sums = np.random.default_rng(seed), np.zeros(PERMUTATIONS)
    for domain in np.unique(held_out.record_domain):
        members = held_out.record_domain == domain
        values, weights = evidence[members], centered[members]
        per_chunk = max(1, CHUNK // len(values))
        for start in range(0, PERMUTATIONS, per_chunk):
            size = min(per_chunk, PERMUTATIONS - start)
            shuffled = rng.permuted(np.broadcast_to(values, (size, len(values))), axis=1)
            sums[start : start + size] += shuffled @ weights
    exceeding = int((sums / spread >= observed - TOLERANCE).sum())
    return observed, (1 + exceeding) / (1 + PERMUTATIONS)
