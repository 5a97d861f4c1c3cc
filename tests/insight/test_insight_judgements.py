"""Held-out judgements in a report: what is read, and what the plots show."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from insight_runs import HOSTILE, make_run

from reinlm.insight.judgements import read_judgements
from reinlm.insight.points import draw_points
from reinlm.insight.report import write_report
from reinlm.runs.metrics import MetricsLog

TABLES: dict[str, Any] = {
    "kind": "pairs",
    "cases": 30,
    "prompts": 20,
    "reliability": [
        {"from": 0.5, "to": 0.55, "predicted": 0.52, "mean": 0.4, "low": 0.2, "high": 0.6, "cases": 20},
        {"from": 0.9, "to": 0.95, "predicted": 0.92, "mean": 1.0, "low": 0.72, "high": 1.0, "cases": 10},
    ],
    "by_length": [
        {"from": -5, "to": -1, "difference": -3.0, "mean": 0.5, "low": 0.3, "high": 0.7, "cases": 15},
        {"from": 0, "to": 9, "difference": 4.0, "mean": 0.7, "low": 0.5, "high": 0.9, "cases": 15},
    ],
    "by_slice": {"kind": [{"value": HOSTILE, "mean": 0.6, "low": 0.4, "high": 0.8, "cases": 30}]},
}


def folder(path: Path, tables: dict[str, Any], step: int = 4) -> Path:
    run = make_run(path, "reward", 0)
    figures = {"accuracy": 0.6, "accuracy_low": 0.42, "accuracy_high": 0.77, "ece": 0.1, "ece_low": 0.05}
    figures |= {"ece_high": 0.2, "brier": 0.21, "auc": 0.7}
    MetricsLog(path).append(4, {f"eval/test/{name}": value for name, value in figures.items()} | {"loss": 1.0})
    (path / "held_out.json").write_text(json.dumps({"step": step, "sets": {"test": tables}}))
    run.close()
    return path


def test_the_figures_stand_with_their_intervals_and_the_plots_in_words(tmp_path: Path) -> None:
    page = write_report(folder(tmp_path / "run", TABLES)).read_text(encoding="utf-8")
    assert "30 pairs of 20 prompts, after step 4" in page
    cells = '<td class="number"><strong>60.0 %</strong></td><td class="number change">42.0–77.0 %</td>'
    assert f'<th scope="row">accuracy</th>{cells}' in page
    assert "<strong>ECE 10.0 % (5.0–20.0 %); Brier score 0.210.</strong>" in page
    assert "predicted 92.0 %, observed 100.0 % (72.0–100.0 %), 10 pairs" in page
    assert "-5 to -1 tokens: 50.0 % (30.0–70.0 %), 15 pairs" in page
    assert "<script>window.hacked" not in page


def test_a_run_without_held_out_judgements_or_with_ratings_has_no_such_section(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", {})
    assert read_judgements(run, []) == []
    assert "Held-out judgements" not in write_report(run).read_text(encoding="utf-8")
    (run / "held_out.json").unlink()
    assert read_judgements(run, []) == []


def test_tables_of_a_step_that_is_not_logged_have_plots_alone(tmp_path: Path) -> None:
    (found,) = read_judgements(folder(tmp_path / "run", TABLES, step=9), [])
    assert found["figures"] == []
    assert [plot["title"] for plot in found["plots"]] == ["Reliability", "Accuracy against length difference"]


def test_points_stand_where_their_values_are() -> None:
    plot: dict[str, Any] = {
        "title": "T", "x": "x", "y": "y", "x_percent": False, "x_range": [0.0, 10.0], "described": "",
        "points": [{"x": 0.0, "y": 0.5, "low": 0.4, "high": 0.6}, {"x": 10.0, "y": 1.0, "low": 0.8, "high": 1.0}],
        "weights": [1, 4], "lines": [[[0.0, 0.0], [1.0, 1.0]]],
    }  # fmt: skip
    svg = draw_points(plot)
    (x0, y0, r0), (x1, y1, r1) = (map(float, found) for found in re.findall(r'cx="(.*?)" cy="(.*?)" r="(.*?)"', svg))
    assert x0 < x1
    assert y0 > y1 == 22.0  # the top of the axis
    assert r1 == 2 * r0 == 5.0
    bars = [[float(n) for n in bar] for bar in re.findall(r'class="line" d="M(.*?) (.*?)V(.*?)"', svg)]
    assert all(low >= y >= high for y, (_, low, high) in zip((y0, y1), bars, strict=True))
    alone = {**plot, "points": plot["points"][:1], "weights": [1], "x_range": [0.0, 0.0]}
    assert draw_points(alone).count("<circle") == 1
