"""Losses: log-probabilities of pairs in, one loss per pair out. `OBJECTIVES` lists them by name."""

from unmdpo.catalog.objectives import OBJECTIVES, AdaptiveObjective, Objective, take
from unmdpo.objectives.pairs import PairLogps, beta_ln_from_lengths

__all__ = ["OBJECTIVES", "AdaptiveObjective", "Objective", "PairLogps", "beta_ln_from_lengths", "take"]
