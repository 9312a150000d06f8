"""The nearest right name, for messages about names that do not exist."""

from collections.abc import Iterable
from difflib import get_close_matches

MAX_NAMES = 20


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A clause to append to an error: the closest of `known`, or the whole list when none is close."""
    names = sorted(set(known))
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    if len(names) > MAX_NAMES:
        names = [*names[:MAX_NAMES], "…"]
    return f"known: {', '.join(name[:60] for name in names)}" if names else "nothing is known here"
