"""The page about memory and speed defines what `reinlm bench` measures."""

from __future__ import annotations

from pathlib import Path

from reinlm.training.benchmark import FIGURES

PAGE = (Path(__file__).parents[2] / "docs" / "memory_and_speed.md").read_text(encoding="utf-8")


def test_every_figure_of_bench_is_defined() -> None:
    defined = [line for line in PAGE.splitlines() if line.startswith("| `")]
    rows = [f"| `{name}` | {figure.unit} | {figure.meaning} |" for name, figure in FIGURES.items()]
    assert [row for row in defined if row.split("`")[1] in FIGURES] == rows
