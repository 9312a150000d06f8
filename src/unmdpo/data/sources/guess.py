"""A best guess of what the columns of an unknown shape hold, to be offered and never taken."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

DEPTH, WIDTH = 4, 4  # how far nested fields and lists are followed
WORDS = {
    "chosen": "chosen|preferred|winner|winning|good|better|best|accepted|positive|gold",
    "rejected": "rejected|dispreferred|loser|losing|bad|worse|worst|negative",
    "response_a": "a|1|left|first|one",
    "response_b": "b|2|right|second|two",
    "prompt": "prompt|question|instruction|query|task|input|context|user|problem",
    "label": "label|labels|preference|winner|choice|verdict|better|annotation|vote|rating|preferred",
    "more": "input|context|passage|background",
    "score": "score|rating|reward|value|grade",
    "strength": "strength|degree|confidence|magnitude|much",
}
ID = re.compile(r"(?:^|[^a-z])(?:id|Id|ID)$")
PATTERNS = {name: re.compile(f"^(?:{words})$") for name, words in WORDS.items()}


def guessed(values: Mapping[str, Any]) -> dict[str, str]:
    """What may hold what: target → path. Empty if no two responses are found."""
    texts = dict(_leaves(values, str))
    numbers = dict(_leaves(values, int | float))
    found = _two(texts, "chosen", "rejected")
    if found:
        scores = {
            f"score_{side}": path
            for side in ("chosen", "rejected")
            for path in numbers
            if _says(path, side) and _says(path, "score")
        }
        found |= scores if len(scores) == 2 else _one(numbers, "strength")
    else:
        found = _two(texts, "response_a", "response_b")
        sides = ("response_a", "response_b")
        rest = [path for path in texts | numbers if not any(_says(path, side) for side in sides)]
        found |= (_one(rest, "label") | _one(rest, "strength")) if found else {}
    left = {path: text for path, text in texts.items() if path not in found.values() and not ID.search(path)}
    return _asked(left) | found if found else {}


def as_option(target: str, path: str) -> str:
    """As it is typed in a shell."""
    return f"--column {shlex.quote(f'{target}={path}')}"


def _asked(texts: Mapping[str, str]) -> dict[str, str]:
    """The prompt, and what it is about if that is in a column of its own."""
    found = _one(texts, "prompt")
    more = _one((path for path in texts if path not in found.values()), "more")
    return {"prompt": ",".join([*found.values(), *more.values()])} if found else {}


def _leaves(values: Any, kind: Any, path: str = "", depth: int = DEPTH) -> Iterator[tuple[str, Any]]:
    """Paths of values of a kind, with dots into what is nested."""
    if isinstance(values, kind) and not isinstance(values, bool):
        yield path, values
    elif depth and isinstance(values, Mapping | list):
        parts = values.items() if isinstance(values, Mapping) else enumerate(values[:WIDTH])
        for name, part in parts:
            yield from _leaves(part, kind, f"{path}.{name}" if path else str(name), depth - 1)


def _says(path: str, target: str) -> bool:
    words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z0-9])", "_", path).lower())
    return any(PATTERNS[target].match(word) for word in words)


def _one(paths: Iterable[str], target: str) -> dict[str, str]:
    return next(({target: path} for path in paths if _says(path, target)), {})


def _two(texts: Mapping[str, str], first: str, second: str) -> dict[str, str]:
    """The first two texts that differ by nothing but the side that they name; the longest if there are several."""
    pairs = [
        (one, other)
        for one in texts
        for other in texts
        if one != other and _says(one, first) and _says(other, second) and _rest(one, first) == _rest(other, second)
    ]
    best = max(pairs, key=lambda pair: len(texts[pair[0]]) + len(texts[pair[1]]), default=None)
    return {} if best is None else {first: best[0], second: best[1]}


def _rest(path: str, target: str) -> tuple[str, ...]:
    """A path's words without the one that names the side."""
    words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z0-9])", "_", path).lower())
    return tuple(word for word in words if not PATTERNS[target].match(word))
