"""Counts and shares, in words."""

from collections import Counter
from collections.abc import Mapping
from typing import Any


def shares(counts: Mapping[Any, int], most: int = 6) -> str:
    """The most frequent values with their shares, such as `general 52 %, code 30 %`; numbers by size."""
    total = sum(counts.values()) or 1
    by_size = all(isinstance(name, int) for name in counts)
    ranked = sorted(counts.items(), key=lambda item: (item[0],) if by_size else (-item[1], item[0]))
    parts = [f"{name if name != '' else '(none)'} {percent(count / total)}" for name, count in ranked[:most]]
    if len(ranked) > most:
        parts.append(f"{len(ranked) - most:,} others")
    return ", ".join(parts)


def levels(strengths: Mapping[float, int]) -> str:
    """Shares of levels; where strengths are continuous, their range."""
    if all(float(strength).is_integer() for strength in strengths):
        return shares({int(strength): count for strength, count in strengths.items()})
    ranked = sorted(Counter(strengths).elements())
    return f"from {ranked[0]:.3g} to {ranked[-1]:.3g}, half of them over {ranked[len(ranked) // 2]:.3g}"


def percent(share: float) -> str:
    if share in (0, 1):
        return f"{share:.0%}".replace("%", " %")
    return f"{100 * share:.1f} %" if share < 0.0995 or share > 0.9945 else f"{100 * share:.0f} %"
