"""Training curves for a page: every line on one axis of updates, packed for the script that draws them."""

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Line = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curves:
    """What the template shows: the names of the charts, and their data."""

    names: list[str]
    packed: str

    @classmethod
    def of(cls, curves: Mapping[str, Mapping[str, Line]]) -> "Curves | None":
        """Of metric → line's name → its points; None if there are none."""
        aligned = {metric: _aligned(lines) for metric, lines in curves.items()}
        return cls([*aligned], packed(aligned)) if aligned else None


def _aligned(lines: Mapping[str, Line]) -> dict[str, Any]:
    """All lines over the updates that any of them has; None where a line has no number."""
    updates = sorted({update for line in lines.values() for update, _ in line})
    known = {name: {update: value for update, value in line if math.isfinite(value)} for name, line in lines.items()}
    return {"x": updates, "y": {name: [line.get(update) for update in updates] for name, line in known.items()}}


def packed(value: Any) -> str:
    """Compressed JSON, encoded in characters that need no escaping in HTML."""
    return base64.b64encode(gzip.compress(json.dumps(value).encode(), mtime=0)).decode()
