"""What is drawn stands where its values are."""

from __future__ import annotations

import re
from typing import Any

import pytest

from reinlm.insight.svg import BOTTOM, HEIGHT, TOP, WIDTH, draw, tick_text, ticks


def figure(*curves: dict[str, Any], form: str = "plain", unit: str = "none") -> dict[str, Any]:
    return {"title": "t", "unit": unit, "form": form, "curves": [{"label": "c", **curve} for curve in curves]}


def lines(svg: str, kind: str = "line") -> list[list[tuple[float, float]]]:
    found = re.findall(rf'class="{kind}" d="([^"]*)"', svg)
    return [[(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.-]+) ([\d.-]+)", path)] for path in found]


def test_a_curve_runs_from_the_left_of_the_frame_to_its_right_and_from_tick_to_tick() -> None:
    svg = draw(figure({"x": [0, 5, 10], "y": [0.0, 0.25, 1.0]}), "label")
    ((first, middle, last),) = lines(svg)
    left = float(re.findall(r'class="axis" d="M([\d.]+)', svg)[0])
    assert first == (left, HEIGHT - BOTTOM)
    assert last == (WIDTH - 10, TOP)
    assert middle == pytest.approx(
        ((left + WIDTH - 10) / 2, HEIGHT - BOTTOM - 0.25 * (HEIGHT - BOTTOM - TOP)), abs=0.06
    )


def test_a_value_that_is_not_known_leaves_a_gap_and_a_point_between_gaps_has_a_mark() -> None:
    y = [1.0] * 30 + [None, 2.0, None] + [1.0] * 30
    svg = draw(figure({"x": list(range(63)), "y": y}), "label")
    assert re.findall(r'class="line" d="([^"]*)"', svg)[0].count("M") == 3
    assert svg.count("<circle") == 1


def test_a_band_lies_between_its_bounds_and_is_cut_where_one_of_them_is_not_known() -> None:
    curve = {"x": [0, 1, 2, 3], "y": [1.0, 1.0, 1.0, 1.0], "low": [0.0, 0.5, None, 0.0], "high": [2.0, 1.5, 2.0, 2.0]}
    (band,) = re.findall(r'class="band" d="([^"]*)"', draw(figure(curve), "label"))
    assert band.count("Z") == 2
    heights = [float(y) for _, y in re.findall(r"[ML]([\d.-]+) ([\d.-]+)", band)]
    assert (min(heights), max(heights)) == (TOP, HEIGHT - BOTTOM)


def test_a_logarithmic_axis_has_a_tick_for_each_decade_and_leaves_out_what_has_no_logarithm() -> None:
    svg = draw(figure({"x": [0, 1, 2, 3], "y": [1e-3, 0.0, 1e-2, 1e-1]}, form="log"), "label")
    (points,) = lines(svg)
    assert [y for _, y in points] == pytest.approx([182.0, (182 + 22) / 2, 22.0], abs=0.06)
    assert {"0.001", "0.01", "0.1"} <= set(re.findall(r">([\d.]+)</text>", svg))


def test_stacked_areas_lie_on_top_of_each_other() -> None:
    svg = draw(figure({"x": [0, 1], "y": [1.0, 1.0]}, {"x": [1], "y": [3.0]}, form="stacked"), "label")
    below, above = lines(svg, "area")
    frame = HEIGHT - BOTTOM - TOP
    assert below[:2] == [(below[0][0], HEIGHT - BOTTOM - frame / 4), (float(WIDTH - 10), HEIGHT - BOTTOM - frame / 4)]
    assert above[1] == (WIDTH - 10, TOP)


@pytest.mark.parametrize(("low", "high"), [(None, 0.5), (0.5, None), (0.25, 0.5)])
def test_a_healthy_range_is_shaded_up_to_the_frame(low: float | None, high: float | None) -> None:
    svg = draw(figure({"x": [0, 1], "y": [0.0, 1.0], "healthy": [low, high]}), "label")
    ((top, height),) = re.findall(r'class="healthy" x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', svg)
    frame = HEIGHT - BOTTOM - TOP
    assert float(height) == pytest.approx(frame * ((1.0 if high is None else high) - (low or 0.0)))
    assert float(top) == pytest.approx(TOP + frame * (1 - (1.0 if high is None else high)))


def test_a_bound_far_above_the_curve_does_not_flatten_it() -> None:
    ((_, last),) = lines(draw(figure({"x": [0, 1], "y": [0.0, 1.0], "healthy": [None, 100.0]}), "label"))
    assert last[1] == TOP


def test_text_of_a_run_is_escaped() -> None:
    svg = draw(figure({"x": [0, 1], "y": [0.0, 1.0]}, unit="<b>"), 'a "label" <i>')
    assert "<b>" not in svg
    assert "<i>" not in svg


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.0, 1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ((-1e-3, 2e-3), [-0.001, 0.0, 0.001, 0.002]),
        ((3, 17), [0, 5, 10, 15, 20]),
    ],
)
def test_ticks_are_round_and_enclose_the_values(values: tuple[float, float], expected: list[float]) -> None:
    assert ticks(*values) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.25, "0.25"), (1500, "1,500"), (20_000, "20k"), (3e6, "3M"), (2e-5, "2e-5"), (-0.5, "-0.5")],
)
def test_ticks_are_short(value: float, text: str) -> None:
    assert tick_text(value) == text
