"""A sweep's results as charts and a table."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.lab.sweep import Result
from benchmarks.lab.table import Experiment
from unmdpo.report import charts


def write_sweep(chosen: Experiment, name: str, results: Sequence[Result], folder: Path) -> list[Path]:
    """Writes one SVG per chart, and all numbers as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"{name}.json"]
    written[0].write_text(json.dumps([_plain(result) for result in results], indent=1) + "\n", "utf-8")
    for chart in chosen.measures:
        path = folder / f"{name}-{re.sub(r'[^a-z0-9]+', '-', chart.lower()).strip('-')}.svg"
        shown = [result for result in results if result.chart == chart]
        path.write_text(standalone(_drawn(chosen, chart, shown)), "utf-8")
        written.append(path)
    return written


def _plain(result: Result) -> dict[str, object]:
    estimate = result.estimate
    return {
        "point": result.point.label,
        "chart": result.chart,
        "series": result.series,
        "mean": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "values": result.values,
    }


def _drawn(chosen: Experiment, chart: str, results: Sequence[Result]) -> str:
    """Lines if the knob is a number, rows if it is a choice."""
    several = len(chosen.measures[chart]) > 1
    series: dict[str, list[tuple[float, float, float, float]]] = {}
    rows = []
    for result in results:
        estimate = result.estimate
        name = f"{result.point.label}: {result.series}" if several else result.point.label
        rows.append(charts.Interval(name, estimate.value, estimate.low, estimate.high))
        if result.point.x is not None:
            point = (result.point.x, estimate.value, estimate.low, estimate.high)
            series.setdefault(result.series, []).append(point)
    if series:
        return bands(series, f"{chart} against {chosen.knob}", chosen.knob, chart)
    return charts.forest(rows, f"{chart} by {chosen.knob}", chart, 0.0)


def bands(series: dict[str, list[tuple[float, float, float, float]]], title: str, x_label: str, y_label: str) -> str:
    """Lines through (x, value, low, high) with a whisker at each point and a legend inside the chart."""
    points = [point for line in series.values() for point in line]
    across = charts.spread([point[0] for point in points], charts.LEFT, charts.WIDTH - charts.RIGHT)
    up = charts.spread(
        [0.0, *(end for point in points for end in point[1:])], charts.HEIGHT - charts.BOTTOM, charts.TOP
    )
    body = charts.frame(across, up, x_label, y_label)
    body.append(charts.line(across.start, up.at(0), across.end, up.at(0), "neutral"))
    for place, line in enumerate(series.values()):
        shift = 4 * (place - (len(series) - 1) / 2)  # puts whiskers next to each other
        path = " ".join(f"{across.at(x) + shift:.1f},{up.at(y):.1f}" for x, y, _, _ in line)
        body.append(f'<polyline class="line c{place}" points="{path}"/>')
        for x, y, low, high in line:
            at = across.at(x) + shift
            body.append(charts.line(at, up.at(low), at, up.at(high), f"line c{place}"))
            body.append(f'<circle class="dot c{place}" cx="{at:.1f}" cy="{up.at(y):.1f}" r="3.5"/>')
    return charts.svg([*body, *_legend(series)], title)


def _legend(names: Iterable[str]) -> Iterator[str]:
    """Inside the chart, at the top."""
    for place, name in enumerate(names):
        y = charts.TOP + 8 + 15 * place
        yield charts.line(charts.LEFT + 8, y, charts.LEFT + 26, y, f"line c{place}")
        yield charts.text(charts.LEFT + 31, y + 4, name, "start", "row")


def standalone(svg: str) -> str:
    """A chart as a separate file, on white, with the style the page would give it."""
    style = (
        "svg{background:#fff}text{font:11px system-ui,sans-serif;fill:#555}.row{font-size:12px;fill:#222}"
        ".grid{stroke:#e3e3e3}.neutral{stroke:#222;stroke-dasharray:4 3}"
        ".whisker{stroke:#0b66c3;stroke-width:2}"
        ".point{fill:#0b66c3}.line{fill:none;stroke:var(--hue);stroke-width:1.8}.dot{fill:var(--hue)}"
        ".c0{--hue:#4477aa}.c1{--hue:#ee6677}.c2{--hue:#228833}.c3{--hue:#b8a12a}.c4{--hue:#66ccee}.c5{--hue:#aa3377}"
    )
    opening, rest = svg.split(">", 1)
    return f'{opening} xmlns="http://www.w3.org/2000/svg"><style>{style}</style>{rest}\n'
