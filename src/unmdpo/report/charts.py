"""Small charts as SVG text: drawn once, sharp on any screen and in print, colored by the page's style.

All text that comes from data is escaped here. Shapes have classes, never colors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 520, 240, 52, 34, 12, 12
LONGEST_NAME = 64  # characters shown of a row's name


@dataclass(frozen=True)
class Axis:
    """Maps values to positions between two pixels."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)

    def ticks(self, wanted: int = 7) -> list[float]:
        """A few round values within the axis."""
        span = self.high - self.low
        if not span > 0:
            return [self.low]
        power = 10.0 ** math.floor(math.log10(span / wanted))
        step = next(m * power for m in (1, 2, 5, 10) if span / (m * power) <= wanted)
        first = math.ceil(self.low / step - 1e-9)
        return [step * place for place in range(first, math.floor(self.high / step + 1e-9) + 1)]


def spread(values: Sequence[float], start: float, end: float, room: float = 0.05) -> Axis:
    """An axis that covers all values, with some room."""
    low, high = min(values), max(values)
    margin = (high - low) * room or max(abs(high), 1.0) * room
    return Axis(low - margin, high + margin, start, end)


def number(value: float) -> str:
    return f"{value:.4g}"


def svg(body: Sequence[str], title: str, width: float = WIDTH, height: float = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(body)}</svg>"
    )


def text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def frame(across: Axis, up: Axis, x_label: str, y_label: str) -> list[str]:
    """Grid, ticks and axis names."""
    body = []
    for value in across.ticks():
        x = across.at(value)
        body += [line(x, up.start, x, up.end, "grid"), text(x, up.start + 15, number(value))]
    for value in up.ticks():
        y = up.at(value)
        body += [line(across.start, y, across.end, y, "grid"), text(LEFT - 6, y + 3.5, number(value), "end")]
    body.append(text((across.start + across.end) / 2, up.start + 29, x_label, kind="name"))
    middle = (up.start + up.end) / 2
    turned = f'<g transform="rotate(-90 12 {middle:.1f})">{text(12, middle, y_label, kind="name")}</g>'
    return [*body, turned]


def histogram(values: Sequence[float], title: str, x_label: str, bins: int = 30) -> str:
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / (high - low) * bins))] += 1
    across, up = Axis(low, high, LEFT, WIDTH - RIGHT), Axis(0, max(counts) * 1.05, HEIGHT - BOTTOM, TOP)
    body = frame(across, up, x_label, "prompts")
    width, step = (across.end - across.start) / bins, (high - low) / bins
    for place, count in enumerate(counts):
        y, said = up.at(count), f"{number(low + place * step)} to {number(low + (place + 1) * step)}: {count}"
        body.append(
            f'<rect class="bar" x="{across.start + place * width:.1f}" y="{y:.1f}" width="{width - 1:.1f}" '
            f'height="{up.start - y:.1f}"><title>{said}</title></rect>'
        )
    return svg(body, title)


def scatter(points: Sequence[tuple[float, float]], title: str, x_label: str, y_label: str) -> str:
    """Plots the points whose values are finite."""
    points = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    if not points:
        return ""
    across = spread([x for x, _ in points], LEFT, WIDTH - RIGHT)
    up = spread([y for _, y in points], HEIGHT - BOTTOM, TOP)
    dots = "".join(
        f'<circle cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="1.8"><title>{number(x)}, {number(y)}</title></circle>'
        for x, y in points
    )
    return svg([*frame(across, up, x_label, y_label), f'<g class="dots">{dots}</g>'], title)


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


@dataclass(frozen=True)
class Interval:
    """A row of a forest plot."""

    name: str
    value: float
    low: float
    high: float


def forest(rows: Sequence[Interval], title: str, x_label: str, neutral: float) -> str:
    """Points with intervals, one per row, and a line at the neutral value."""
    if not rows:
        return ""
    ends = [neutral, *(end for row in rows for end in (row.low, row.high))]
    left, step = max(118, 20 + 7 * max(len(_shortened(row.name)) for row in rows)), 24
    width, height = WIDTH + max(0, left - 230), TOP + step * len(rows) + BOTTOM
    across, bottom = spread(ends, left, width - RIGHT), height - BOTTOM
    body = []
    for value in across.ticks():
        x = across.at(value)
        body += [line(x, TOP, x, bottom, "grid"), text(x, bottom + 15, number(value))]
    body.append(line(across.at(neutral), TOP, across.at(neutral), bottom, "neutral"))
    for place, row in enumerate(rows):
        y = TOP + step * (place + 0.5)
        body.append(text(left - 8, y + 4, _shortened(row.name), "end", "row"))
        body.append(line(across.at(row.low), y, across.at(row.high), y, "whisker"))
        label = f"{row.name}: {number(row.value)} [{number(row.low)}, {number(row.high)}]"
        body.append(
            f'<circle class="point" cx="{across.at(row.value):.1f}" cy="{y:.1f}" r="4">'
            f"<title>{escape(label)}</title></circle>"
        )
    body.append(text((left + width - RIGHT) / 2, bottom + 29, x_label, kind="name"))
    return svg(body, title, width, height)
