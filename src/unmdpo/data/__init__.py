"""Comparisons, and everything about them that needs no model."""

from typing import TYPE_CHECKING

from unmdpo.core.lazy import lazily

if TYPE_CHECKING:
    from unmdpo.data.comparison import Comparison, Comparisons, Origin
    from unmdpo.data.identity import Message, Prompt, fold_of, prompt_hash
    from unmdpo.data.load import DataRef, load_comparisons
    from unmdpo.data.sources import SOURCES, SourceSettings
    from unmdpo.data.strength import PairRule, StrengthRule

__all__ = [
    "SOURCES",
    "Comparison",
    "Comparisons",
    "DataRef",
    "Message",
    "Origin",
    "PairRule",
    "Prompt",
    "SourceSettings",
    "StrengthRule",
    "fold_of",
    "load_comparisons",
    "prompt_hash",
]
_HOMES = {
    "comparison": ["Comparison", "Comparisons", "Origin"],
    "identity": ["Message", "Prompt", "fold_of", "prompt_hash"],
    "load": ["DataRef", "load_comparisons"],
    "sources": ["SOURCES", "SourceSettings"],
    "strength": ["PairRule", "StrengthRule"],
}
__getattr__ = lazily(__name__, _HOMES)
