"""A page about preference data, in the style of the report."""

from collections.abc import Sequence
from pathlib import Path

from unmdpo.audit.describe import Description
from unmdpo.report.html import asset, template, write_page

MOST_BARS = 12


def write_data_page(seen: Description, facts: Sequence[tuple[str, str]], recipe: str, path: Path) -> Path:
    bars: dict[str, Sequence[tuple[object, int]]] = {
        "strength": sorted(seen.strengths.items()),
        "domain": _most_frequent(seen.domains),
        "language or script": _most_frequent(seen.languages),
        "turns of the user": sorted(seen.turns.items()),
    }
    page = template("look.html").render(
        title=Path(seen.path).name,
        facts=facts,
        bars={name: _shares(counts) for name, counts in bars.items() if len(counts) > 1},
        recipe=recipe,
        style=asset("style.css"),
    )
    return write_page(path, page)


def _most_frequent(counts: dict[str, int]) -> list[tuple[object, int]]:
    ranked: list[tuple[object, int]] = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(count for _, count in ranked[MOST_BARS:])
    return ranked[:MOST_BARS] + ([("others", rest)] if rest else [])


def _shares(counts: Sequence[tuple[object, int]]) -> list[tuple[str, int, float]]:
    most = max(count for _, count in counts)
    return [(str(name) or "(none)", count, 100 * count / most) for name, count in counts]
