"""Charts as SVG text that needs no script: axes with ticks, bands, healthy ranges; plain, percent, logarithmic or stacked.

Colours are those of the page (`--c1` to `--c8`), so that a chart follows its light or dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

WIDTH, HEIGHT = 380, 216
"""Units of the drawing, which are pixels at its usual size."""
TOP, BOTTOM, RIGHT = 22, 34, 10
COLORS = 8
FEW = 40
"""Curves of at most this many points have a mark at each and are not smoothed."""
FAR = 1.5
"""A bound of a healthy range is drawn up to this many times the largest value: further away it would flatten the curve."""

Values = Sequence[float | None]


@dataclass(frozen=True)
class Axis:
    """Maps values in [low, high] to the drawing's units from `start` to `end`.

    Example: the middle of a vertical axis:
        >>> Axis(0.0, 2.0, 200.0, 0.0).place(1.0)
        100.0
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def draw(chart: Mapping[str, Any], label: str) -> str:
    """The chart as an `<svg>` element.

    Args:
        chart: as `reinlm.insight.charts.charts` makes them: title, unit, form, smoothing, curves with x, y, low, high.
        label: what a screen reader says of it.
    """
    curves, form = chart["curves"], chart["form"]
    stacked = _stacked(curves) if form == "stacked" else None
    y_ticks, y_low, y_high, log = _vertical(curves, form, stacked)
    names = [tick_text(tick, percent=form == "percent") for tick in y_ticks]
    left = 12 + 6.2 * max(map(len, names))
    steps = [x for curve in curves for x in curve["x"]]
    x_axis = Axis(*widened(min(steps), max(steps)), left, WIDTH - RIGHT)
    y_axis = Axis(y_low, y_high, HEIGHT - BOTTOM, TOP, log)
    parts = [grid(y_axis, y_ticks, names, left), _steps(x_axis, min(steps), max(steps))]
    if chart["unit"] not in ("none", ""):
        parts.append(f'<text class="unit" x="2" y="11">{escape(chart["unit"])}</text>')
    parts += _areas(curves, stacked, x_axis, y_axis) if stacked else _lines(chart, x_axis, y_axis)
    frame = f'data-x="{x_axis.low:g} {x_axis.high:g} {left:.1f} {WIDTH - RIGHT} {TOP} {HEIGHT - BOTTOM}"'
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}" {frame}>{"".join(parts)}</svg>'


def smooth(values: Values, window: int) -> list[float | None]:
    """The centred moving average over `window` values (odd), fewer at the ends; None where there is no value.

    Example:
        >>> smooth([1.0, None, 3.0, 5.0], 3)
        [1.0, None, 4.0, 4.0]
    """
    half = window // 2
    out: list[float | None] = []
    for place, value in enumerate(values):
        known = [v for v in values[max(place - half, 0) : place + half + 1] if v is not None]
        out.append(None if value is None else math.fsum(known) / len(known))
    return out


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from at most `low` to at least `high`.

    Example:
        >>> ticks(0.0, 0.93)
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def tick_text(value: float, *, percent: bool = False) -> str:
    """A tick's number: `25 %`, `1,500`, `20k`, `1e-6`."""
    if percent:
        return f"{100 * value:.4g} %"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / min(size, 1e3 if letter == 'k' else size):g}{letter}"
    if value and abs(value) < 1e-4:
        mantissa, _, exponent = f"{value:e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:,.4g}" if value != int(value) else f"{int(value):,}"


# ---------------------------------------------------------------------------------------------------------- axes


def _vertical(
    curves: Sequence[Mapping[str, Any]], form: str, stacked: Sequence[Values] | None
) -> tuple[list[float], float, float, bool]:
    """The vertical axis: its ticks, its ends, and whether it is logarithmic."""
    bounds = stacked or [curve[key] for curve in curves for key in ("y", "low", "high") if key in curve]
    values = [value for column in bounds for value in column if value is not None]
    if form == "log" and (positive := [value for value in values if value > 0]):
        bottom, top = math.floor(math.log10(min(positive)) + 1e-9), math.ceil(math.log10(max(positive)) - 1e-9)
        powers = range(bottom, max(top, bottom + 1) + 1)
        stride = math.ceil(len(powers) / 6)
        return [10.0**power for power in powers[::stride]], 10.0 ** powers[0], 10.0 ** powers[-1], True
    low, high = min(values), max(values)
    if stacked or 0 <= low < 0.8 * high:
        low = 0.0
    near = [bound for curve in curves for bound in curve.get("healthy", ()) if bound is not None]
    for bound in near:
        if abs(bound) <= FAR * max(abs(low), abs(high)):
            low, high = min(low, bound), max(high, bound)
    low, high = widened(low, high)
    found = ticks(low, high)
    return found, found[0], found[-1], False


def widened(low: float, high: float) -> tuple[float, float]:
    """Ends that differ: those of a constant lie around it."""
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    half = abs(low) / 2 or 0.5
    return low - half, high + half


def grid(axis: Axis, values: Sequence[float], names: Sequence[str], left: float) -> str:
    """The vertical axis: a line and a name at each value, from `left` on."""
    lines = []
    for value, name in zip(values, names, strict=True):
        y = f"{axis.place(value):.1f}"
        lines.append(f'<path class="grid" d="M{left:.1f} {y}H{WIDTH - RIGHT}"/>')
        lines.append(f'<text x="{left - 6:.1f}" y="{float(y) + 4:.1f}" text-anchor="end">{name}</text>')
    return "".join(lines)


def _steps(axis: Axis, first: float, last: float) -> str:
    """The horizontal axis: whole steps alone."""
    base = HEIGHT - BOTTOM
    shown = sorted({round(tick) for tick in ticks(axis.low, axis.high, 4) if first <= round(tick) <= last})
    shown = shown or sorted({round(first), round(last)})
    marks = "".join(
        f'<path class="axis" d="M{axis.place(tick):.1f} {base}v4"/>'
        f'<text x="{axis.place(tick):.1f}" y="{base + 16}" text-anchor="middle">{tick_text(tick)}</text>'
        for tick in shown
    )
    line = f'<path class="axis" d="M{axis.start:.1f} {base}H{axis.end}"/>'
    return f'{line}{marks}<text class="unit" x="{axis.end}" y="{HEIGHT - 3}" text-anchor="end">step</text>'


# --------------------------------------------------------------------------------------------------------- curves


def _lines(chart: Mapping[str, Any], x_axis: Axis, y_axis: Axis) -> list[str]:
    parts = []
    for number, curve in enumerate(chart["curves"]):
        inner = [_healthy(curve, x_axis, y_axis)]
        if "low" in curve and "high" in curve:
            inner.append(_band(curve["x"], curve["low"], curve["high"], x_axis, y_axis))
        path = _path(curve["x"], curve["y"], x_axis, y_axis)
        if curve.get("window"):
            smoothed = _path(curve["x"], smooth(curve["y"], curve["window"]), x_axis, y_axis)
            inner += [f'<path class="raw" d="{path}"/>', f'<path class="line" d="{smoothed}"/>']
        else:
            inner.append(f'<path class="line" d="{path}"/>')
        inner.append(_marks(curve, x_axis, y_axis))
        parts.append(f'<g class="s{number % COLORS + 1}">{"".join(inner)}</g>')
    return parts


def _marks(curve: Mapping[str, Any], x_axis: Axis, y_axis: Axis) -> str:
    """A mark at each point of a short curve, and at points of longer ones that no line reaches."""
    y = curve["y"]
    alone = range(len(y)) if len(y) <= FEW else [i for i in range(len(y)) if not any(_known(y, i - 1, i + 1))]
    points = [(curve["x"][i], y[i]) for i in alone if y[i] is not None and not (y_axis.log and y[i] <= 0)]
    return "".join(f'<circle cx="{x_axis.place(x):.1f}" cy="{y_axis.place(v):.1f}" r="2.2"/>' for x, v in points)


def _known(values: Values, *places: int) -> Iterator[bool]:
    return (0 <= place < len(values) and values[place] is not None for place in places)


def _healthy(curve: Mapping[str, Any], x_axis: Axis, y_axis: Axis) -> str:
    """The healthy range as an area, as far as the vertical axis reaches."""
    if not (bounds := curve.get("healthy")) or y_axis.log:
        return ""
    low, high = (end if bound is None else bound for bound, end in zip(bounds, (y_axis.low, y_axis.high), strict=True))
    low, high = (min(max(value, y_axis.low), y_axis.high) for value in (low, high))
    top, bottom = y_axis.place(high), y_axis.place(low)
    size = f'width="{x_axis.end - x_axis.start:.1f}" height="{max(bottom - top, 1.0):.1f}"'
    return f'<rect class="healthy" x="{x_axis.start:.1f}" y="{top:.1f}" {size}/>'


def _path(x: Sequence[float], y: Values, x_axis: Axis, y_axis: Axis) -> str:
    """Lines between neighbouring points; a gap where there is no value."""
    parts, open_ = [], False
    for at, value in zip(x, y, strict=True):
        if value is None or (y_axis.log and value <= 0):
            open_ = False
            continue
        parts.append(f"{'L' if open_ else 'M'}{x_axis.place(at):.1f} {y_axis.place(value):.1f}")
        open_ = True
    return "".join(parts)


def _band(x: Sequence[float], low: Values, high: Values, x_axis: Axis, y_axis: Axis) -> str:
    """The area between two curves, in one piece for each stretch where both are known."""
    rows = list(zip(x, low, high, strict=True))
    d = ""
    for known, stretch in groupby(rows, lambda row: row[1] is not None and row[2] is not None):
        if known:
            points = list(stretch)
            around = [(at, top) for at, _, top in points] + [(at, bottom) for at, bottom, _ in reversed(points)]
            d += f"{_path([at for at, _ in around], [edge for _, edge in around], x_axis, y_axis)}Z"
    return f'<path class="band" d="{d}"/>' if d else ""


def _stacked(curves: Sequence[Mapping[str, Any]]) -> list[list[float | None]]:
    """The upper edges of the curves on top of each other, at the steps of all of them; no value counts as 0."""
    steps = sorted({x for curve in curves for x in curve["x"]})
    edge, edges = [0.0] * len(steps), []
    for curve in curves:
        known = {x: y or 0.0 for x, y in zip(curve["x"], curve["y"], strict=True)}
        edge = [below + known.get(x, 0.0) for below, x in zip(edge, steps, strict=True)]
        edges.append([*edge])
    return edges  # type: ignore[return-value]


def _areas(curves: Sequence[Mapping[str, Any]], edges: Sequence[Values], x_axis: Axis, y_axis: Axis) -> list[str]:
    steps = sorted({x for curve in curves for x in curve["x"]})
    below: Values = [0.0] * len(steps)
    parts = []
    for number, edge in enumerate(edges):
        area = _band(steps, below, edge, x_axis, y_axis).replace('"band"', '"area"')
        parts.append(f'<g class="s{number % COLORS + 1}">{area}</g>')
        below = edge
    return parts
