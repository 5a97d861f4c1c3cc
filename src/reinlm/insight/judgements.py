"""What a reward model makes of held-out judgements, for the report: figures with intervals, plots, and tables by slice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reinlm.insight.page import percent, percent_range, read_json
from reinlm.runs.folder import HELD_OUT_FILE

_FIGURES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "accuracy": ("accuracy", percent),
    "auc": ("AUC", percent),
    "ece": ("expected calibration error (ECE)", percent),
    "brier": ("Brier score", "{:.3f}".format),
    "loss": ("loss", "{:.3f}".format),
    "gap_accuracy": ("accuracy, training less held out", "{:+.3f}".format),
    "gap_loss": ("loss, training less held out", "{:+.3f}".format),
}
_CASES = {"pairs": "pairs", "rankings": "pairs of a ranking", "labels": "answers", "steps": "steps"}


def read_judgements(folder: Path, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each held-out set its name, a table of figures with their intervals, plots and tables by slice; empty without any.

    From `held_out.json`, and the record of the same step.

    Args:
        records: of the run's metrics.
    """
    found = read_json(folder / HELD_OUT_FILE)
    if not found:
        return []
    logged: Mapping[str, Any] = next((record for record in reversed(records) if record["step"] == found["step"]), {})
    return [_set(name, tables, logged, found["step"]) for name, tables in found["sets"].items() if tables]


def _set(name: str, tables: Mapping[str, Any], logged: Mapping[str, Any], step: int) -> dict[str, Any]:
    prefix = f"eval/{name}/"
    figures = {key.removeprefix(prefix): value for key, value in logged.items() if key.startswith(prefix)}
    cases = _CASES[tables["kind"]]
    plots = [_reliability(tables, figures, cases)]
    if tables.get("by_length"):
        plots.append(_by_length(tables["by_length"], figures))
    return {
        "name": name,
        "step": step,
        "size": f"{tables['cases']:,} {cases} of {tables['prompts']:,} prompts",
        "figures": [
            {"label": label, "value": show(figures[key]), "interval": _interval(figures, key, show)}
            for key, (label, show) in _FIGURES.items()
            if figures.get(key) is not None
        ],
        "plots": plots,
        "slices": [
            {
                "column": column,
                "rows": [
                    {"value": row["value"], "cases": row["cases"], "mean": percent(row["mean"]), "interval": _ends(row)}
                    for row in rows
                ],
            }
            for column, rows in tables.get("by_slice", {}).items()
        ],
        "cases": cases,
    }


def _interval(figures: Mapping[str, Any], key: str, show: Callable[[float], str]) -> str:
    """`61.2–68.0 %`; empty where the figure has no interval."""
    low, high = figures.get(f"{key}_low"), figures.get(f"{key}_high")
    if low is None or high is None:
        return ""
    return percent_range(low, high) if show is percent else f"{show(low)} to {show(high)}"


def _ends(row: Mapping[str, Any]) -> str:
    return percent_range(row["low"], row["high"])


def _reliability(tables: Mapping[str, Any], figures: Mapping[str, Any], cases: str) -> dict[str, Any]:
    rows = tables["reliability"]
    of_pairs = tables["kind"] in ("pairs", "rankings")
    beside = [
        f"{label} {show(figures[key])} ({_interval(figures, key, show)})".removesuffix(" ()")
        for key, label in (("ece", "ECE"), ("brier", "Brier score"))
        if figures.get(key) is not None
        for show in (_FIGURES[key][1],)
    ]
    how = (
        "σ of the difference of two scores, against how often the higher score was right"
        if of_pairs
        else "σ of the score, against how many were good"
    )
    return {
        "title": "Reliability",
        "y": "higher score was right" if of_pairs else f"{cases} that are good",
        "x": "predicted chance",
        "x_percent": True,
        "x_range": [0.5 if of_pairs else 0.0, 1.0],
        "points": [{"x": row["predicted"], "y": row["mean"], "low": row["low"], "high": row["high"]} for row in rows],
        "lines": [[[0.0, 0.0], [1.0, 1.0]]],
        "caption": (
            f"The chance that the scores predict, {how}, in bins of equal width. On the dashed line a prediction is right as "
            "often as it says; below it the scores are too far apart. Bars: 95 % intervals (Wilson), dots: larger where more "
            f"{cases} are."
        ),
        "beside": "; ".join(beside),
        "weights": [row["cases"] for row in rows],
        "described": "; ".join(
            f"predicted {percent(row['predicted'])}, observed {percent(row['mean'])} ({_ends(row)}), {row['cases']} {cases}"
            for row in rows
        ),
    }


def _by_length(rows: Sequence[Mapping[str, Any]], figures: Mapping[str, Any]) -> dict[str, Any]:
    xs = [row["difference"] for row in rows]
    lines = [[[min(xs), 0.5], [max(xs), 0.5]]]
    beside = [
        f"{percent(figures[key])} where the better answer is {text} ({_interval(figures, key, percent)})"
        for key, text in (
            ("accuracy_shorter", "shorter"),
            ("accuracy_equal", "as long"),
            ("accuracy_longer", "longer"),
        )
        if figures.get(key) is not None
    ]
    return {
        "title": "Accuracy against length difference",
        "y": "accuracy",
        "x": "tokens by which the better answer is longer",
        "x_percent": False,
        "x_range": [min(xs), max(xs)],
        "points": [{"x": row["difference"], "y": row["mean"], "low": row["low"], "high": row["high"]} for row in rows],
        "lines": lines,
        "caption": (
            "Pairs in groups of about the same size by their difference in length. A curve that rises means that the model "
            "scores length; the dashed line is a coin. Bars: 95 % intervals (Wilson)."
        ),
        "beside": "; ".join(beside),
        "weights": [row["cases"] for row in rows],
        "described": "; ".join(
            f"{row['from']:g} to {row['to']:g} tokens: {percent(row['mean'])} ({_ends(row)}), {row['cases']} pairs"
            for row in rows
        ),
    }
