"""summary.json, from the metrics file, so that a run that is killed at its end and resumed writes the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def summarise(
    records: Sequence[Mapping[str, Any]], *, kind: str, steps: int, stopped: str | None, seconds: float, checkpoint: str
) -> dict[str, Any]:
    """The figures that a run is judged by; `before` and `after` are its first and last evaluation."""
    summary: dict[str, Any] = {
        "kind": kind,
        "steps": steps,
        "stopped": stopped,
        "train_seconds": seconds,
        "checkpoint": checkpoint,
    }
    evaluations = [record for record in records if any(name.startswith("eval/") for name in record)]
    if evaluations:
        summary["before"] = _evaluated(evaluations[0])
        summary["after"] = _evaluated(evaluations[-1])
    samples = sum(record.get("samples", 0.0) for record in records)
    if samples and seconds:
        summary["samples_per_second"] = samples / seconds
    return summary


def _evaluated(record: Mapping[str, Any]) -> dict[str, Any]:
    return {"step": record["step"]} | {n.removeprefix("eval/"): v for n, v in record.items() if n.startswith("eval/")}
