"""What the pages share: templates, the policy on scripts, numbers as text."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reinlm.errors import InputError
from reinlm.insight.points import draw_points
from reinlm.insight.svg import draw

FRACTIONS = ("accuracy", "greedy", "pass@", "best_of@", "maj@", "clipped_ratio", "frac_")


def render(template: str, **context: Any) -> str:
    """A self-contained page: its style and its one script are in it, and the policy in it allows no other script.

    Templates may call `chart(figure)` for the drawing, `plot(figure)` for points with intervals,
    and `breakable(name)` for a name that may wrap after `/` and `_`.
    """
    from markupsafe import Markup

    folder = _templates()
    script = (folder / "page.js").read_text(encoding="utf-8")
    policy = f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
    style = (folder / "page.css").read_text(encoding="utf-8")
    page = _environment().get_template(template)
    text: str = page.render(**context, script=Markup(script), policy=policy, style=Markup(style))  # noqa: S704
    return text


def _templates() -> Path:
    return Path(__file__).parent / "templates"


@functools.cache
def _environment() -> Any:
    """The templates, each of which is compiled once in a process: compiling takes far longer than filling in a page."""
    import jinja2
    from markupsafe import Markup, escape

    def breakable(name: str) -> Markup:
        return Markup(re.sub(r"([/_])", r"\1<wbr>", str(escape(name))))  # noqa: S704  escaped before

    def chart(figure: Mapping[str, Any]) -> Markup:
        return Markup(draw(figure, described(figure)))  # noqa: S704  draw escapes what it is given

    def plot(figure: Mapping[str, Any]) -> Markup:
        return Markup(draw_points(figure))  # noqa: S704  draw_points escapes what it is given

    loader = jinja2.FileSystemLoader(_templates())
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {
        "breakable": breakable,
        "chart": chart,
        "plot": plot,
        "points": points,
        "number": number_text,
        "percent": percent,
    }
    return environment


def described(figure: Mapping[str, Any]) -> str:
    """The figure in words, for those who do not see it."""
    show = percent if figure["form"] == "percent" else number_text
    ends = []
    for curve in figure["curves"]:
        known = [(x, y) for x, y in zip(curve["x"], curve["y"], strict=True) if y is not None]
        (first, low), (last, high) = known[0], known[-1]
        ends.append(f"{curve['label']} {show(low)} at step {first:,}, {show(high)} at step {last:,}")
    unit = "" if figure["unit"] in ("none", "") else f", in {figure['unit']}"
    return f"{figure['title']}{unit}: {'; '.join(ends)}"


def points(figure: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a figure for the readout below it, to five significant digits."""
    columns = ("y", "low", "high")
    curves = [
        {"label": curve["label"], "x": curve["x"]}
        | {key: [_short(v) for v in curve[key]] for key in columns if key in curve}
        for curve in figure["curves"]
    ]
    return {"percent": figure["form"] == "percent", "curves": curves}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def read_json(path: Path) -> Any:
    """What a JSON file holds; None where there is none. Raises InputError for a damaged one."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}", hint="remove the file to leave it out") from None


def is_fraction(name: str) -> bool:
    """Whether a metric is shown in percent."""
    return any(part in name for part in FRACTIONS) and "return" not in name


def is_number(value: Any) -> bool:
    """Whether a value is a number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def percent(value: float) -> str:
    """`95.1 %`."""
    return f"{100 * value:.1f} %"


def percent_range(low: float, high: float) -> str:
    """`93.2–97.0 %`."""
    return f"{100 * low:.1f}–{percent(high)}"


def number_text(value: float) -> str:
    """Four significant digits, whole numbers in full."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def interval_text(row: Mapping[str, Any], show: Callable[[float], str]) -> str:
    """The interval of a row of a comparison; empty for one run, and in words for runs that show no spread to go by."""
    if row["low"] is None:
        return ""
    return "all equal" if row["low"] == row["high"] else f"{show(row['low'])} to {show(row['high'])}"
