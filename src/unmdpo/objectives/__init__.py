"""Losses: log-probabilities of pairs in, one loss per pair out. `OBJECTIVES` lists them by name."""

from typing import TYPE_CHECKING

from unmdpo.core.lazy import lazily
from unmdpo.objectives.table import OBJECTIVES, AdaptiveObjective, Objective, take

if TYPE_CHECKING:
    from unmdpo.objectives.pairs import PairLogps, beta_ln_from_lengths

__all__ = ["OBJECTIVES", "AdaptiveObjective", "Objective", "PairLogps", "beta_ln_from_lengths", "take"]
__getattr__ = lazily(__name__, {"pairs": ["PairLogps", "beta_ln_from_lengths"]})
