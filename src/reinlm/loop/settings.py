"""The settings of a loop and the result of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LoopSettings:
    """When a loop evaluates, saves and stops early.

    Example: evaluate every 50 steps, judge by accuracy, save every 100:
        LoopSettings(higher_is_better=True, evaluate_every=50, save_every=100)
    """

    higher_is_better: bool
    """True: early stopping and the best checkpoint use `eval/…/accuracy`; False: `eval/…/loss`."""
    stride: int = 1
    """Steps per call of `Run.step`, and per line of metrics."""
    evaluate_every: int = 0
    """Steps between evaluations; 0: only at the start and the end."""
    stop_at: float | None = None
    patience: int | None = None
    save_every: int = 50
    """Steps between checkpoints; 0: only at the end."""
    keep_last: int = 2
    resume_command: str | None = None
    """The command to resume, for messages; by default `reinlm KIND --resume --output FOLDER`."""


@dataclass(frozen=True)
class RunResult:
    """The result of a run: its folder, the contents of summary.json, and the trained policy."""

    folder: Path
    summary: dict[str, Any]
    policy: Any = field(repr=False)
