"""Templates that escape everything they are given, and pages that are written completely or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from unmdpo.core.files import write_text


def template(name: str, **filters: Callable[..., Any]) -> Template:
    environment = Environment(
        loader=PackageLoader("unmdpo.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.get_template(name)


def asset(name: str) -> Markup:
    return Markup((Path(__file__).parent / "assets" / name).read_text("utf-8"))


def assets() -> dict[str, Markup]:
    """Styles and scripts of a report. Charts of curves are drawn by uPlot (MIT), which lies beside its licence."""
    return {
        "style": asset("uplot/uPlot.min.css") + asset("style.css"),
        "script": asset("script.js") + asset("curves.js"),
        "chart_library": asset("uplot/uPlot.iife.min.js"),
    }


def write_page(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path
