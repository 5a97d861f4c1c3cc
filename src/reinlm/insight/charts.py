"""The charts of a report, drawn from the records of a run. Meanings and units come from the metric declarations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from reinlm.insight.chart_declarations import CHARTS, GOLD, REWARD, Chart, Series
from reinlm.insight.svg import FEW, tick_text
from reinlm.runs.declarations import Metric, find_metric, pattern
from reinlm.runs.metrics import leading

MOST_POINTS = 500
"""Longer series are averaged down to this many points, which keeps the page small."""

MOST_STACKED = 60
"""The same for stacked areas."""
ROUNDING = 1e-6
"""Losses below this are 0 but for rounding."""

Records = Sequence[Mapping[str, Any]]


_UNDECLARED = Metric("undeclared", "none", "its unit and meaning are not declared")

# pass@1 is the accuracy by another name
_COVERED = ("step", "time", "eval/{set}/pass@1", "eval/{set}/accuracy_low", "eval/{set}/accuracy_high")


def charts(records: Records, kind: str, metrics: Mapping[str, Metric]) -> list[dict[str, Any]]:
    """The figures of a run, as plain values for the page: title, unit, caption, form, and curves with their points.

    `metrics` are the declarations by name; a logged metric without one has neither unit nor healthy range. The loss of an
    RL run that is 0 up to rounding, as that of one update of standardised advantages is by construction, is left out.
    """
    names = _names(records)
    figures, shown = [], {name for known in _COVERED for name, _ in _matches(known, names)}
    if kind == "rl" and all(abs(record.get("loss", 0.0)) < ROUNDING for record in records):
        shown.add("loss")
    reward_first = any(name.endswith("/reward") for name in leading(names).values())
    for chart in sorted(CHARTS, key=lambda chart: chart.title not in (GOLD, REWARD)) if reward_first else CHARTS:
        if (chart.kinds and kind not in chart.kinds) or (chart.needs and not any(_matches(chart.needs, names))):
            continue
        curves = []
        for series in chart.series:
            for name, parts in _matches(series.metric, names):
                if name not in shown:
                    curves.append(_curve(records, series, name, parts, metrics, chart))
                    shown.update({name, *(bound.format(**parts) for bound in (series.low, series.high) if bound)})
        if curves:
            figures.append(_figure(chart, curves, metrics))
    figures += [_other(records, name, metrics) for name in names if name not in shown]
    return [_of_actions(figure) for figure in figures] if kind == "classical" else figures


def _of_actions(figure: Mapping[str, Any]) -> dict[str, Any]:
    """A figure of a classical run: it has actions in place of tokens."""
    words = (("Tokens", "Actions"), ("tokens", "actions"), ("token", "action"))
    changed = {key: value for key, value in figure.items() if isinstance(value, str)}
    for before, after in words:
        changed = {key: text.replace(before, after) for key, text in changed.items()}
    return {**figure, **changed}


def split_constant_charts(figures: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[dict[str, Any]]]:
    """The figures with something to draw, and rows of title, label, value, unit for those that are constant throughout."""
    drawn, rows = [], []
    for chart in figures:
        values = [{y for y in curve["y"] if y is not None} for curve in chart["curves"]]
        if any(len(found) > 1 for found in values):
            drawn.append(chart)
            continue
        for curve, (value,) in zip(chart["curves"], values, strict=True):
            label = curve["label"] if chart["legend"] else ""
            row = {"title": chart["title"], "label": label, "value": value, "unit": chart["unit"]}
            rows.append(row | {"percent": chart["form"] == "percent", "meaning": chart["meaning"]})
    return drawn, rows


def smoothing(points: int) -> int | None:
    """How many values the moving average of a curve of so many points is over: a thirtieth; None where none is drawn.

    Example:
        >>> smoothing(300)
        11
    """
    return None if points <= FEW else max(points // 60, 1) * 2 + 1


def _figure(
    chart: Chart, curves: list[dict[str, Any]], metrics: Mapping[str, Metric], other: bool = False
) -> dict[str, Any]:
    described = (find_metric(series.metric, metrics) for series in chart.series)
    info = next((metric for metric in described if metric is not None), _UNDECLARED)
    return {
        "title": chart.title,
        "unit": info.unit if chart.unit is None else chart.unit,
        "meaning": _sentence(info.meaning) if chart.meaning is None else chart.meaning,
        "healthy": _with_full_stop(info.healthy) if chart.healthy is None else chart.healthy,
        "criterion": _criterion(curves, percent=chart.form == "percent"),
        "unhealthy": _with_full_stop(info.bad) if chart.healthy is None else "",
        "form": chart.form,
        "smoothing": sorted({curve["window"] for curve in curves if "window" in curve}),
        "curves": curves,
        "legend": len(chart.series) > 1 or any("{" in series.label for series in chart.series),
        "other": other,
    }


def _criterion(curves: Sequence[Mapping[str, Any]], *, percent: bool) -> str:
    """What the declared ranges ask for, and how many of the logged values meet it."""
    said = []
    for curve in curves:
        if "healthy" in curve:
            low, high = (None if bound is None else tick_text(bound, percent=percent) for bound in curve["healthy"])
            asked = f"at most {high}" if low is None else f"at least {low}" if high is None else f"{low} to {high}"
            asked = asked if low != high else f"{low}"
            said.append(f"{curve['label']}: {asked} ({curve['inside']:,} of {curve['logged']:,} values)")
    return "; ".join(said)


def _sentence(text: str) -> str:
    return _with_full_stop(text[:1].upper() + text[1:])


def _with_full_stop(text: str) -> str:
    return f"{text}." if text else ""


def _other(records: Records, name: str, metrics: Mapping[str, Metric]) -> dict[str, Any]:
    series = Series(name, name)
    chart = Chart(name, (series,))
    return _figure(chart, [_curve(records, series, name, {}, metrics, chart)], metrics, other=True)


def _names(records: Records) -> list[str]:
    """The metrics with at least one finite value, in the order of their first appearance."""
    names: dict[str, None] = {}
    for record in records:
        names.update((name, None) for name, value in record.items() if _finite(value) is not None)
    return list(names)


def _matches(metric: str, names: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    form = pattern(metric)
    return [(name, match.groupdict()) for name in names if (match := form.fullmatch(name))]


def _curve(
    records: Records, series: Series, name: str, parts: Mapping[str, str], metrics: Mapping[str, Metric], chart: Chart
) -> dict[str, Any]:
    columns = {"y": name}
    if series.low and series.high:
        columns |= {"low": series.low.format(**parts), "high": series.high.format(**parts)}
    stacked = chart.form == "stacked"  # a phase that a step lacks took no time
    rows = [{name: 0.0, **record} for record in records if stacked or name in record]
    most = MOST_STACKED if stacked else MOST_POINTS
    label = series.label.format(**parts) if parts else series.label
    steps = [record["step"] for record in rows]
    curve: dict[str, Any] = {"label": label, "x": [part[-1] for part in _stretches(steps, most)]}
    for key, column in columns.items():
        values = [_mean(part) for part in _stretches([_finite(record.get(column)) for record in rows], most)]
        if any(value is not None for value in values):
            curve[key] = values
    if chart.smooth and chart.form != "stacked" and (window := smoothing(len(curve["x"]))):
        curve["window"] = window
    info = find_metric(name, metrics)
    if info is not None and info.healthy_range is not None:
        logged = [value for record in rows if (value := _finite(record[name])) is not None]
        low, high = info.healthy_range
        inside = [v for v in logged if (low is None or v >= low) and (high is None or v <= high)]
        curve |= {"healthy": [low, high], "inside": len(inside), "logged": len(logged)}
    return curve


def _stretches(values: list[Any], most: int) -> list[list[Any]]:
    size = max(1, math.ceil(len(values) / most))
    return [values[start : start + size] for start in range(0, len(values), size)]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _finite(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if number and math.isfinite(value) else None


def find_chart(
    name: str, curves: list[dict[str, Any]], metrics: Mapping[str, Metric], *, percent: bool
) -> dict[str, Any]:
    """A figure of one metric with curves of one's own, such as one for each group of runs."""
    for curve in curves:
        if window := smoothing(len(curve["x"])):
            curve["window"] = window
    info = find_metric(name, metrics) or _UNDECLARED
    chart = Chart(name, (Series(name, "{run}"),), info.unit, form="percent" if percent else "plain")
    return _figure(chart, curves, {name: info})
