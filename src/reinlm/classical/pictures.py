"""Grid worlds as pictures: the value of every cell and the best action in it, as text and as SVG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reinlm.classical.agent import Agent
from reinlm.classical.tabular.table import TableAgent
from reinlm.classical.tabular.td import TD

CELL = 64
ENDS = ("G", "H", "C")
"""Goal, hole and cliff."""
NOTHING = "·"
"""In place of the arrows of a cell without a best action."""
ARROWS = {"left": "←", "down": "↓", "right": "→", "up": "↑"}
_ORDERS = {"CliffWalking": ("up", "right", "down", "left")}
_USUAL = ("left", "down", "right", "up")


@dataclass(frozen=True)
class Picture:
    """A grid of values and arrows.

    Example: two cells, of which the second is the end:
        Picture(values=np.array([[-1.0, 0.0]]), arrows=[["→", "·"]], marks=[["S", "G"]])
    """

    values: np.ndarray
    """[rows, columns]"""
    arrows: list[list[str]]
    """All best actions of a cell; "·" where there is none, or nothing to choose."""
    marks: list[list[str]]
    """What the world calls a cell, such as S, G, H or C; mostly empty. Nothing is decided at G, H and C."""

    def text(self) -> str:
        """A line of arrows and a line of values for each row."""
        wide = max(6, *(len(self._value(v)) + 1 for v in self.values.ravel()))
        lines = []
        for values, arrows, marks in zip(self.values, self.arrows, self.marks, strict=True):
            cells = zip(arrows, marks, strict=True)
            lines.append(
                "".join(
                    (mark if mark in ENDS or (mark and arrow == NOTHING) else mark + arrow).center(wide)
                    for arrow, mark in cells
                )
            )
            shown = zip(values, marks, strict=True)
            lines.append("".join(("" if mark in ENDS else self._value(value)).center(wide) for value, mark in shown))
        return "\n".join(line.rstrip() for line in lines)

    def svg(self) -> str:
        """Cells shaded from the lowest value (dark) to the highest."""
        rows, columns = self.values.shape
        decided = np.array([[mark not in ENDS for mark in row] for row in self.marks])
        low, high = float(self.values[decided].min()), float(self.values[decided].max())
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{columns * CELL}" height="{rows * CELL}" '
            f'viewBox="0 0 {columns * CELL} {rows * CELL}" font-family="sans-serif" text-anchor="middle">'
        ]
        for (row, column), value in np.ndenumerate(self.values):
            share = (float(value) - low) / (high - low) if high > low else 1.0
            x, y, middle = column * CELL, row * CELL, column * CELL + CELL / 2
            if not decided[row, column]:
                parts.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="#ddd" stroke="#888"/>')
                parts.append(
                    f'<text x="{middle}" y="{y + 40}" font-size="20" fill="#555">{self.marks[row][column]}</text>'
                )
                continue
            fill = "#{:02x}{:02x}{:02x}".format(
                *(round(a + (b - a) * share) for a, b in ((70, 253), (80, 246), (140, 227)))
            )
            ink = "#fff" if share < 0.45 else "#222"
            parts.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{fill}" stroke="#888"/>')
            parts.append(
                f'<text x="{middle}" y="{y + 32}" font-size="22" fill="{ink}">{self.arrows[row][column]}</text>'
            )
            parts.append(f'<text x="{middle}" y="{y + 54}" font-size="12" fill="{ink}">{self._value(value)}</text>')
            parts.append(f'<text x="{x + 9}" y="{y + 14}" font-size="11" fill="{ink}">{self.marks[row][column]}</text>')
        return "\n".join([*parts, "</svg>", ""])

    @staticmethod
    def _value(value: float) -> str:
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def picture(agent: Agent) -> Picture | None:
    """The picture of what a table has learned of a grid world; None for other agents and other worlds."""
    if not isinstance(agent, TableAgent):
        return None
    inner: Any = agent.env.unwrapped
    desc = getattr(inner, "desc", None)
    shape = getattr(inner, "shape", None) or (desc.shape if desc is not None and len(desc.shape) == 2 else None)
    if shape is None or int(np.prod(shape)) != agent.states or agent.actions != 4:
        return None
    order = _ORDERS.get(type(inner).__name__.removesuffix("Env"), _USUAL)
    rows, columns = shape
    if isinstance(agent, TD):
        values = agent.v
        chosen: list[list[int]] = [[] for _ in range(agent.states)]
    else:
        q = np.array([agent.values(row) for row in range(agent.states)])
        values = q.max(-1)
        chosen = [
            [a for a in range(4) if q[row, a] >= values[row] - 1e-9 * max(abs(values[row]), 1.0)]
            for row in range(agent.states)
        ]
    arrows = ["".join(ARROWS[order[a]] for a in actions) if 0 < len(actions) < 4 else NOTHING for actions in chosen]
    marks = _marks(inner, desc, shape)
    return Picture(
        np.asarray(values, dtype=float).reshape(shape),
        [arrows[row * columns : (row + 1) * columns] for row in range(rows)],
        marks,
    )


def _marks(inner: Any, desc: Any, shape: tuple[int, int]) -> list[list[str]]:
    if desc is not None:
        letters = [[cell.decode() if isinstance(cell, bytes) else str(cell) for cell in row] for row in desc]
        return [["" if letter == "F" else letter for letter in row] for row in letters]
    marks = [[""] * shape[1] for _ in range(shape[0])]
    cliff = getattr(inner, "_cliff", None)
    if cliff is not None:
        for row, column in zip(*np.nonzero(cliff), strict=True):
            marks[row][column] = "C"
        marks[3][0], marks[3][11] = "S", "G"
    return marks
