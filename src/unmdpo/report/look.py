"""A page about data that was looked at, with the charts of the report."""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unmdpo.audit.look import Look
from unmdpo.errors import UserError
from unmdpo.files import write_text

MOST_BARS = 12


def write_look(seen: Look, facts: Sequence[tuple[str, str]], recipe: str, path: Path) -> Path:
    environment = Environment(
        loader=PackageLoader("unmdpo.report", "assets"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    bars: dict[str, Sequence[tuple[object, int]]] = {
        "strength": sorted(seen.strengths.items()),
        "domain": _most_frequent(seen.domains),
        "language or script": _most_frequent(seen.languages),
        "turns of the user": sorted(seen.turns.items()),
    }
    page = environment.get_template("look.html").render(
        title=Path(seen.path).name,
        facts=facts,
        bars={name: _shares(counts) for name, counts in bars.items() if len(counts) > 1},
        recipe=recipe,
        style=Markup((Path(__file__).parent / "assets" / "style.css").read_text("utf-8")),
    )
    try:
        write_text(path, page)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path


def _most_frequent(counts: dict[str, int]) -> list[tuple[object, int]]:
    ranked: list[tuple[object, int]] = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(count for _, count in ranked[MOST_BARS:])
    return ranked[:MOST_BARS] + ([("others", rest)] if rest else [])


def _shares(counts: Sequence[tuple[object, int]]) -> list[tuple[str, int, float]]:
    most = max(count for _, count in counts)
    return [(str(name) or "(none)", count, 100 * count / most) for name, count in counts]
