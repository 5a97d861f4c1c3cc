"""The charts of a report: which metrics share one, and what their captions say."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from insight_runs import make_run
from report_pages import figures, page_without_scripts

from reinlm.insight.chart_declarations import CHARTS
from reinlm.insight.charts import MOST_POINTS, charts
from reinlm.insight.report import write_report
from reinlm.metrics import METRICS
from reinlm.runs.declarations import Metric, write_metrics_info
from reinlm.runs.metrics import MetricsLog


def test_every_logged_metric_is_in_exactly_one_chart() -> None:
    records = [{"step": 1, "time": 1.0, "loss": 1.0, "eval/a/accuracy": 0.5, "eval/a/accuracy_low": 0.4}]
    records[0] |= {"eval/a/accuracy_high": 0.6, "eval/b/accuracy": 0.7, "my/own": 2.0, "kl": math.nan, "epoch": 0.5}
    shown = {chart["title"]: [curve["label"] for curve in chart["curves"]] for chart in charts(records, "rl", METRICS)}
    assert shown == {
        "Held-out accuracy": ["a", "b"],
        "Policy loss": ["loss"],
        "my/own": ["my/own"],
        "epoch": ["epoch"],
    }


def test_a_curve_holds_its_points_its_band_and_gaps_where_a_value_was_not_finite() -> None:
    low, high = "eval/{}/accuracy_low", "eval/{}/accuracy_high"
    records: list[dict[str, Any]] = [
        {"step": 0, "eval/x/accuracy": 0.5, low.format("x"): 0.4, high.format("x"): 0.6},
        {"step": 5},
        {"step": 10, "eval/x/accuracy": math.inf, low.format("x"): 0.5, high.format("x"): 0.7},
    ]
    (chart,) = charts(records, "rl", METRICS)
    curve = {"label": "x", "x": [0, 10], "y": [0.5, None], "low": [0.4, 0.5], "high": [0.6, 0.7]}
    assert chart["curves"] == [curve]
    assert chart["form"] == "percent"


def test_the_loss_means_another_thing_in_another_kind_of_run() -> None:
    records = [{"step": 1, "loss": 1.0}]
    assert [[chart["title"] for chart in charts(records, kind, METRICS)] for kind in ("sft", "rl", "mine")] == [
        ["Cross-entropy loss, training and held out"],
        ["Policy loss"],
        ["loss"],
    ]


def test_reward_and_gold_score_of_held_out_answers_share_a_chart_where_there_is_a_gold_score() -> None:
    record = {"step": 1, "reward": 0.5, "eval/a/reward": 1.0, "eval/a/gold": 0.5}
    with_gold = {chart["title"]: [c["label"] for c in chart["curves"]] for chart in charts([record], "rl", METRICS)}
    assert with_gold["Held-out reward and gold score"] == ["reward: a", "gold: a"]
    assert with_gold["Mean reward, by function"] == ["weighted sum"]
    del record["eval/a/gold"]
    without = {chart["title"]: [c["label"] for c in chart["curves"]] for chart in charts([record], "rl", METRICS)}
    assert without == {"Mean reward, by function": ["weighted sum", "held out: a"]}


def test_a_long_run_is_averaged_in_stretches() -> None:
    records = [{"step": step, "entropy": float(step % 3)} for step in range(3 * MOST_POINTS)]
    (chart,) = charts(records, "rl", METRICS)
    assert chart["curves"][0]["x"] == [3 * index + 2 for index in range(MOST_POINTS)]
    assert chart["curves"][0]["y"] == [1.0] * MOST_POINTS


def test_a_chart_reads_unit_meaning_and_bounds_from_the_declaration_of_its_metric() -> None:
    (chart,) = charts([{"step": 1, "completions/clipped_ratio": 0.5}], "rl", METRICS)
    info = METRICS["completions/clipped_ratio"]
    assert (chart["title"], chart["unit"]) == ("Answers that a limit cut off", info.unit)
    assert chart["meaning"].lower() == f"{info.meaning}.".lower()
    assert (chart["healthy"], chart["unhealthy"]) == (f"{info.healthy}.", f"{info.bad}.")
    assert chart["curves"][0]["healthy"] == [None, 0.1]
    assert chart["criterion"] == "training: at most 10 % (0 of 1 values)"


def test_units_and_bounds_are_those_of_the_folder_or_else_of_the_table_that_is_given(tmp_path: Path) -> None:
    logged = {"completions/clipped_ratio": 0.5, "mine/margin": 1.0}
    later = {"completions/clipped_ratio": 0.05, "mine/margin": -1.0}
    own = Metric("mine/margin", "nats", "distance to the next answer", healthy_range=(0.0, None))
    run = make_run(tmp_path, "rl", 0)
    log = MetricsLog(tmp_path)
    log.append(1, logged)
    log.append(2, later)
    write_metrics_info(tmp_path, [own])
    given = {own.name: replace(own, unit="points"), "completions/clipped_ratio": METRICS["completions/clipped_ratio"]}
    alone, both = (figures(write_report(run.path, metrics=table)) for table in (None, given))
    (run.path / "metrics_info.json").unlink()
    earlier = figures(write_report(run.path))

    def shown(page: dict[str, dict[str, Any]]) -> dict[str, tuple[str, Any]]:
        return {title: (chart["unit"], chart["healthy"]) for title, chart in page.items()}

    assert shown(alone) == {"Answers that a limit cut off": ("none", 0), "mine/margin": ("nats", 1)}
    assert shown(both) == {"Answers that a limit cut off": ("fraction", 1), "mine/margin": ("nats", 1)}
    assert shown(earlier) == {"Answers that a limit cut off": ("none", 0), "mine/margin": ("none", 0)}
    assert alone["mine/margin"]["caption"] == (
        "Distance to the next answer. Healthy range (shaded where it fits the axis): mine/margin: at least 0 (1 of 2 values)."
    )
    assert earlier["mine/margin"]["caption"] == "Its unit and meaning are not declared."
    assert ", in none" not in page_without_scripts(run.path / "report.html")


def test_a_chart_is_described_by_the_first_of_its_metrics_that_the_run_has() -> None:
    held_out = "eval/{set}/clipped_ratio"
    (chart,) = charts([{"step": 1, "eval/a/clipped_ratio": 0.5}], "sft", {held_out: METRICS[held_out]})
    assert (chart["title"], chart["unit"]) == ("Answers that a limit cut off", "fraction")
    assert chart["meaning"] == (
        "Held-out episodes that a limit cut off: length, turns, context, time or the environment's own."
    )


def test_every_chart_names_metrics_that_are_declared() -> None:
    named = [n for c in CHARTS for s in c.series for n in (s.metric, s.low, s.high) if n is not None]
    assert [name for name in named if name not in METRICS] == ["time/{name}"]
