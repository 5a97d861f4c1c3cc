"""The settings of a loop and the result of a run."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from reinlm.display import figure, html_table, svg_curve, text_table
from reinlm.runs.metrics import HEADLINE, ends, read_metrics


@dataclass(frozen=True)
class LoopSettings:
    """When a loop evaluates, saves and stops early.

    Example: evaluate every 50 steps, judge by accuracy, save every 100:
        LoopSettings(higher_is_better=True, evaluate_every=50, save_every=100)
    """

    higher_is_better: bool
    """True: early stopping and the best checkpoint use `eval/…/accuracy`; False: `eval/…/loss`."""
    stride: int = 1
    """Steps per call of `Run.step`, and per line of metrics: at most, unless the run makes more of them at once."""
    evaluate_every: int = 0
    """Steps between evaluations; 0: only at the start and the end."""
    stop_at: float | None = None
    patience: int | None = None
    save_every: int = 50
    """Steps between checkpoints; 0: only at the end."""
    keep_last: int = 2
    resume_command: str | None = None
    """The command to resume, for messages; by default `reinlm KIND --resume --output FOLDER`."""


@dataclass(frozen=True, repr=False)
class RunResult:
    """The result of a run: its folder, the contents of summary.json, and the trained policy.

    It may stand wherever a model does: `reinlm.evaluate(run, …)`, `reinlm.rl(run, …)`.
    """

    folder: Path
    summary: dict[str, Any]
    policy: Any

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: a mapping for every step that logged something."""
        return list(read_metrics(self.folder / "metrics.jsonl"))

    @property
    def metrics(self) -> Any:
        """What the run logged: a pandas frame with a row for each step, or `rows` where pandas is not installed."""
        try:
            import pandas
        except ImportError:
            return self.rows
        return pandas.DataFrame(self.rows)

    def __repr__(self) -> str:
        lines = [f"{self.summary['kind']}: {self._ended()}"]
        if table := self.before_after():
            lines.append(text_table([self.columns, *table]))
        return "\n".join([*lines, *(f"{name:6}  {path}" for name, path in self._paths())])

    def _repr_html_(self) -> str:
        rows = self.rows
        name = next((name for name in ("reward", "return", "loss") if any(name in row for row in rows)), None)
        points = [(row["step"], row[name]) for row in rows if name in row] if name else []
        table = self.before_after() or [("steps", "", str(self.summary["steps"]))]
        shown = html_table([self.columns, *table], f"{self.summary['kind']}: {self._ended()}")
        paths = "<br>".join(f"{escape(name)}: <code>{escape(str(path))}</code>" for name, path in self._paths())
        return f"<div>{shown}{svg_curve(points, name or '')}<div>{paths}</div></div>"

    def _ended(self) -> str:
        why = f" ({self.summary['stopped']})" if self.summary.get("stopped") else ""
        return f"{self.summary['steps']} steps in {self.summary['train_seconds']:.3g} s, {self.summary['ended']}{why}"

    @property
    def columns(self) -> tuple[str, str, str]:
        """The head of the table of `before_after`: of a set that came later, the steps of its first and last evaluation."""
        before, after = self.summary.get("before"), self.summary.get("after")
        if not (before and after) or before["step"] == 0:
            return "", "before", "after"
        return "", f"step {before['step']}", f"step {after['step']}"

    def before_after(self) -> list[tuple[str, str, str]]:
        """(metric, before, after) of the evaluations; without one, start and result of the reward or loss."""
        before, after = self.summary.get("before"), self.summary.get("after")
        if before and after:
            names = [name for name in after if name.endswith(HEADLINE)]
            begun = {name: figure(name, before[name]) for name in names if name in before}
            return [(name, begun.get(name, ""), figure(name, after[name])) for name in names]
        rows = self.rows
        found = {name: [row[name] for row in rows if name in row] for name in ("reward", "return", "loss")}
        means = {name: [fmean(end) for end in ends(name, values)] for name, values in found.items() if values}
        return [(name, figure(name, first), figure(name, last)) for name, (first, last) in means.items()]

    def _paths(self) -> list[tuple[str, Path]]:
        paths = [("model", self.folder / "checkpoints" / "last"), ("report", self.folder / "report.html")]
        return [("folder", self.folder), *((name, path) for name, path in paths if path.exists())]
