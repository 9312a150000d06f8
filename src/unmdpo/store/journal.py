"""Work so far, line by line, that a later attempt may rely on.

Every line carries a checksum over itself and all lines before it. What follows the first line that is cut, changed or
not ours is not believed, and is done again.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from unmdpo.core.files import write_text

SUM, VALUE = "sum", "value"


class Journal:
    """Values in the order they were added; opening it drops what cannot be relied on."""

    def __init__(self, path: Path) -> None:
        self._path, self._sum, self.values = path, "", list[Any]()
        kept = []
        for line in _lines(path):
            value = self._checked(line)
            if value is None:
                break
            self.values.append(value)
            kept.append(line)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(f"{line}\n" for line in kept))

    def add(self, value: Any) -> None:
        """Written at once, so a kill loses nothing of it."""
        assert value is not None
        self._sum = _next_sum(self._sum, value)
        self.values.append(value)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({SUM: self._sum, VALUE: value}, ensure_ascii=False) + "\n")

    def _checked(self, line: str) -> Any:
        """The value of the next line, or None if it is not what was written."""
        try:
            entry = json.loads(line)
            value = entry[VALUE]
            expected = _next_sum(self._sum, value)
        except (ValueError, LookupError, TypeError, RecursionError):
            return None
        if entry.get(SUM) != expected:
            return None
        self._sum = expected
        return value


def _lines(path: Path) -> list[str]:
    """Complete ones; bytes that are no text never match a checksum."""
    if not path.is_file():
        return []
    return path.read_text("utf-8", errors="replace").split("\n")[:-1]


def _next_sum(before: str, value: Any) -> str:
    text = before + json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
