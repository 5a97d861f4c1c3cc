"""What the studies share on paper: the command line, a table in Markdown, and plots as plain SVG."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")
WIDE, HIGH = 420, 330
LEFT, RIGHT, TOP, BOTTOM = 58, 24, 34, 44


def arguments(doc: str | None) -> argparse.Namespace:
    """`output`, the folder of the plot, and `quick`."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else None)
    parser.add_argument("--output", type=Path, default=Path("runs/studies"), help="folder of the plot")
    parser.add_argument("--quick", action="store_true", help="small enough for a first look; the numbers are coarser")
    return parser.parse_args()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def save(folder: Path, name: str, svg: str) -> None:
    """Write `folder/name`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(svg, encoding="utf-8")
    print(f"\n{folder / name}")


@dataclass(frozen=True)
class Curve:
    """A line of a panel; without a name it is not in the legend."""

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    dots: bool = False
    colour: str | None = None


@dataclass(frozen=True)
class Panel:
    """Curves over one pair of axes; what lies outside is cut off at the frame."""

    title: str
    x_label: str
    curves: Sequence[Curve]
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    """The axes run from the first tick to the last."""
    log: bool = False
    """Whether the y axis is logarithmic."""
    legend: tuple[float, float] = (0.04, 0.04)
    """Where the names begin, in shares of the width and the height from the top left."""

    def svg(self, left: float) -> str:
        """The panel, its outer left edge at `left`."""
        x0, x1 = left + LEFT, left + WIDE - RIGHT
        y0, y1 = HIGH - BOTTOM, TOP

        def level(value: float) -> float:
            return math.log10(max(value, 1e-300)) if self.log else value

        def at(x: float, y: float) -> tuple[float, float]:
            low, high = level(self.y_ticks[0]), level(self.y_ticks[-1])
            y = min(max(level(y), low), high)
            across = (x - self.x_ticks[0]) / (self.x_ticks[-1] - self.x_ticks[0])
            return x0 + (x1 - x0) * across, y0 + (y1 - y0) * (y - low) / (high - low)

        parts = [f'<text x="{x0}" y="{TOP - 14}" font-weight="bold">{self.title}</text>']
        for y in self.y_ticks:
            height = at(self.x_ticks[0], y)[1]
            parts.append(f'<line x1="{x0}" y1="{height:.1f}" x2="{x1}" y2="{height:.1f}" stroke="#ddd"/>')
            parts.append(f'<text x="{x0 - 6}" y="{height + 4:.1f}" text-anchor="end" fill="#555">{_short(y)}</text>')
        for x in self.x_ticks:
            across = at(x, self.y_ticks[0])[0]
            parts.append(f'<text x="{across:.1f}" y="{y0 + 16}" text-anchor="middle" fill="#555">{_short(x)}</text>')
        middle = (x0 + x1) / 2
        parts.append(f'<text x="{middle}" y="{HIGH - 10}" text-anchor="middle" fill="#555">{self.x_label}</text>')
        named = 0
        for index, curve in enumerate(self.curves):
            colour = curve.colour or COLOURS[index % len(COLOURS)]
            dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
            style = f'stroke="{colour}" stroke-width="1.6" fill="none"{dash}'
            placed = [at(x, y) for x, y in curve.points]
            parts.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in placed)}" {style}/>')
            if curve.dots:
                parts.extend(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>' for x, y in placed)
            if not curve.name:
                continue
            x, y = x0 + self.legend[0] * (x1 - x0), y1 + self.legend[1] * (y0 - y1) + 8 + 15 * named
            named += 1
            parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x + 20:.1f}" y2="{y:.1f}" {style}/>')
            parts.append(f'<text x="{x + 26:.1f}" y="{y + 4:.1f}" fill="#333">{curve.name}</text>')
        return "\n".join(parts)


def picture(panels: Sequence[Panel], extra: str = "", wide: int | None = None, columns: int | None = None) -> str:
    """Panels in a row, or in rows of `columns`, and what else is drawn beside them."""
    columns = columns or len(panels)
    rows = -(-len(panels) // columns)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide or WIDE * columns}" height="{HIGH * rows}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
    )
    lines = [
        panel.svg(WIDE * (i % columns))
        if i < columns
        else f'<g transform="translate(0 {HIGH * (i // columns)})">{panel.svg(WIDE * (i % columns))}</g>'
        for i, panel in enumerate(panels)
    ]
    return "\n".join([head, *lines, extra, "</svg>", ""])


def _short(value: float) -> str:
    """A tick's number."""
    return (f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:g}").replace("-", "−")
