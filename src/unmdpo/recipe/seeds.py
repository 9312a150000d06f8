"""Policies that are trained more than once: which runs a policy has, and which are compared with each other."""

from collections.abc import Sequence
from typing import NamedTuple


class TrainingRun(NamedTuple):
    """One training of a policy, or answers made elsewhere, which have no seed."""

    seed: int | None
    name: str  # of its stages


class Pair(NamedTuple):
    seed: int | None  # what the two have in common; or the seed of the one that has one
    ours: str
    theirs: str


def with_seed(policy: str, seed: int) -> str:
    """The name of one training among several; no policy can be called so."""
    return f"{policy}@{seed}"


def pair_by_seed(ours: Sequence[TrainingRun], theirs: Sequence[TrainingRun]) -> list[Pair]:
    """A candidate's runs, each with the opponent's of the same seed. An opponent that was trained once meets all of
    them, and something without a seed meets every run of the other."""
    if len(theirs) == 1 or ours[0].seed is None:
        return [
            Pair(own.seed if other.seed is None or len(theirs) == 1 else other.seed, own.name, other.name)
            for own in ours
            for other in theirs
        ]
    by_seed = {other.seed: other.name for other in theirs}
    missing = [own.seed for own in ours if own.seed not in by_seed]
    if missing:
        raise ValueError(f"seed {missing[0]} has no counterpart among the seeds {sorted(map(str, by_seed))}")
    return [Pair(own.seed, own.name, by_seed[own.seed]) for own in ours]
