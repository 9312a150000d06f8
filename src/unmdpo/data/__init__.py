"""Comparisons, and everything about them that needs no model."""

from typing import TYPE_CHECKING

from unmdpo.core.lazy import lazily

if TYPE_CHECKING:
    from unmdpo.data.comparison import Comparison, Comparisons, Origin
    from unmdpo.data.identity import Message, Prompt, fold_of, prompt_hash
    from unmdpo.data.load import load_comparisons
    from unmdpo.data.reading import RowsSettings, rows_of
    from unmdpo.data.sources import SOURCES
    from unmdpo.data.strength import PairRule, StrengthRule

__all__ = [
    "SOURCES",
    "Comparison",
    "Comparisons",
    "Message",
    "Origin",
    "PairRule",
    "Prompt",
    "RowsSettings",
    "StrengthRule",
    "fold_of",
    "load_comparisons",
    "prompt_hash",
    "rows_of",
]
_HOMES = {
    "comparison": ["Comparison", "Comparisons", "Origin"],
    "identity": ["Message", "Prompt", "fold_of", "prompt_hash"],
    "load": ["load_comparisons"],
    "reading": ["RowsSettings", "rows_of"],
    "sources": ["SOURCES"],
    "strength": ["PairRule", "StrengthRule"],
}
__getattr__ = lazily(__name__, _HOMES)
