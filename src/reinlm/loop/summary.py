"""summary.json, from the metrics file, so that a run that is killed at its end and resumed writes the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reinlm.loop.events import Reason


def summarise(
    records: Sequence[Mapping[str, Any]],
    *,
    kind: str,
    steps: int,
    ended: Reason,
    message: str | None,
    stopped: str | None,
    seconds: float,
    checkpoint: str | None,
) -> dict[str, Any]:
    """The contents of summary.json; `before` and `after` are the first and last evaluation.

    Args:
        ended: finished, stopped, interrupted or failed.
        message: why it was stopped, interrupted or failed; None for a run that is finished.
        stopped: why it ends before its last step, by the stop rule or a callback.
    """
    _, skipped = count_updates(records)
    summary: dict[str, Any] = {
        "kind": kind,
        "steps": steps,
        "ended": ended,
        "message": message,
        "stopped": stopped,
        "updates_skipped": skipped,
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


def count_updates(records: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Updates that were made, and those that were skipped since their loss or gradient was not finite.

    Example: a record of `sft` stands for one update, one of `rl` says how many it made:
        >>> count_updates([{"updates/skipped": 1.0}, {"updates/skipped": 1.0}])
        (1, 1)
        >>> count_updates([{"updates/skipped": 1.0, "updates/made": 3.0}])
        (3, 1)
    """
    made = skipped = 0.0
    for record in records:
        if "updates/skipped" in record:
            now = record["updates/skipped"]
            made += record.get("updates/made", 1.0 - (now - skipped))
            skipped = now
    return int(made), int(skipped)


def _evaluated(record: Mapping[str, Any]) -> dict[str, Any]:
    return {"step": record["step"]} | {n.removeprefix("eval/"): v for n, v in record.items() if n.startswith("eval/")}
