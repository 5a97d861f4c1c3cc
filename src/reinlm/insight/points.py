"""Points with intervals over a quantity that is not the step, as SVG: a reliability plot, accuracy against length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from reinlm.insight.svg import BOTTOM, HEIGHT, RIGHT, TOP, WIDTH, Axis, grid, tick_text, ticks, widened

_RADIUS = 2.0, 5.0
"""Of the dots of the fewest and the most cases."""
_AROUND = 0.04
"""Free space beside the outermost points, in parts of the axis."""


def draw_points(plot: Mapping[str, Any]) -> str:
    """The plot as an `<svg>` element.

    Args:
        plot: title, x and y (labels), x_percent, x_range, points (x, y, low, high; y is a share from 0 to 1), weights (which
            make dots larger), lines (dashed, each of points), described (in words).
    """
    points = plot["points"]
    low, high = widened(*plot["x_range"])
    room = (high - low) * _AROUND
    y_ticks = ticks(*_vertical(points))
    names = [tick_text(tick, percent=True) for tick in y_ticks]
    left = 12 + 6.2 * max(map(len, names))
    x_axis = Axis(low - room, high + room, left, WIDTH - RIGHT)
    y_axis = Axis(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = [
        grid(y_axis, y_ticks, names, left),
        _horizontal(x_axis, plot),
        f'<text class="unit" x="2" y="11">{escape(plot["y"])}</text>',
        *(_dashed(line, x_axis, y_axis) for line in plot["lines"]),
        f'<g class="s1">{"".join(_points(points, plot["weights"], x_axis, y_axis))}</g>',
    ]
    label = escape(f"{plot['title']}: {plot['described']}")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _vertical(points: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    """From the lowest bar, at most ½, to 1 or the highest bar."""
    return min(0.5, *(point["low"] for point in points)), max(1.0, *(point["high"] for point in points))


def _horizontal(axis: Axis, plot: Mapping[str, Any]) -> str:
    base = HEIGHT - BOTTOM
    shown = [tick for tick in ticks(*widened(*plot["x_range"])) if axis.low <= tick <= axis.high]
    marks = "".join(
        f'<path class="axis" d="M{axis.place(tick):.1f} {base}v4"/>'
        f'<text x="{axis.place(tick):.1f}" y="{base + 16}" text-anchor="middle">{name}</text>'
        for tick, name in ((tick, tick_text(tick, percent=plot["x_percent"])) for tick in shown)
    )
    line = f'<path class="axis" d="M{axis.start:.1f} {base}H{axis.end}"/>'
    return (
        f'{line}{marks}<text class="unit" x="{axis.end}" y="{HEIGHT - 3}" text-anchor="end">{escape(plot["x"])}</text>'
    )


def _dashed(line: Sequence[Sequence[float]], x_axis: Axis, y_axis: Axis) -> str:
    """A straight line, as far as both axes reach."""
    (x0, y0), (x1, y1) = line
    slope = (y1 - y0) / (x1 - x0) if x1 != x0 else 0.0
    start, end = x_axis.low, x_axis.high
    if slope > 0:
        start, end = (min(max(x0 + (y - y0) / slope, start), end) for y in (y_axis.low, y_axis.high))
    ends = [f"{x_axis.place(x):.1f} {y_axis.place(y0 + slope * (x - x0)):.1f}" for x in (start, end)]
    return f'<path class="rule" d="M{ends[0]}L{ends[1]}"/>'


def _points(points: Sequence[Mapping[str, float]], weights: Sequence[float], x_axis: Axis, y_axis: Axis) -> list[str]:
    """The line through the points, a bar and a dot for each; the area of a dot grows with its weight."""
    path = "L".join(f"{x_axis.place(point['x']):.1f} {y_axis.place(point['y']):.1f}" for point in points)
    found = [f'<path class="raw" d="M{path}"/>']
    for point, weight in zip(points, weights, strict=True):
        x = f"{x_axis.place(point['x']):.1f}"
        low, high = (f"{y_axis.place(point[end]):.1f}" for end in ("low", "high"))
        radius = max(_RADIUS[0], _RADIUS[1] * math.sqrt(weight / max(weights)))
        found.append(f'<path class="line" d="M{x} {low}V{high}"/>')
        found.append(f'<circle cx="{x}" cy="{y_axis.place(point["y"]):.1f}" r="{radius:.1f}"/>')
    return found
