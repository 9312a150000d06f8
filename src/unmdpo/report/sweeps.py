"""A sweep's results as charts and a table."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from unmdpo.experiments.sweep import Result
from unmdpo.experiments.table import Experiment
from unmdpo.report import charts


def write_sweep(chosen: Experiment, name: str, results: Sequence[Result], folder: Path) -> list[Path]:
    """Writes one SVG per chart, and all numbers as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"{name}.json"]
    written[0].write_text(json.dumps([_plain(result) for result in results], indent=1) + "\n", "utf-8")
    for chart in chosen.measures:
        path = folder / f"{name}-{re.sub(r'[^a-z0-9]+', '-', chart.lower()).strip('-')}.svg"
        shown = [result for result in results if result.chart == chart]
        path.write_text(charts.standalone(_drawn(chosen, chart, shown)), "utf-8")
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
        return charts.bands(series, f"{chart} against {chosen.knob}", chosen.knob, chart)
    return charts.forest(rows, f"{chart} by {chosen.knob}", chart, 0.0)
