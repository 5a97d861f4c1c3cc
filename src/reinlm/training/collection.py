"""What there is to say about a batch of scored groups."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from reinlm.objectives.groups import EQUAL
from reinlm.records import ScoredGroup, total, unweighted
from reinlm.rollouts import Collected


def collected_metrics(collected: Collected, names: Sequence[str]) -> dict[str, float]:
    """What was sampled for a step, and what became of it."""
    return sampled_metrics(collected.sampled, names) | {
        "rewards/failed": float(collected.failures),
        "groups/attempts": float(collected.attempts),
        "groups/dropped": float(len(collected.sampled) - len(collected.kept)),
    }


def sampled_metrics(groups: Sequence[ScoredGroup], names: Sequence[str]) -> dict[str, float]:
    """What was sampled, before filters and shaping; names as in TRL where it has them. Failed episodes are left out."""
    rollouts = [rollout for group in groups for rollout in group.group.rollouts if not rollout.failed]
    lengths = [rollout.length for rollout in rollouts]
    finished = [rollout.length for rollout in rollouts if not rollout.truncated]
    rewards = [[reward for reward in group.returns if reward is not None] for group in groups]
    given = [row for row in rewards if row]
    flat = [reward for row in given for reward in row]
    metrics = {
        "reward": _mean(flat),
        "reward_std": _mean([_std(row) for row in given]),
        "groups/single": float(sum(len(row) < 2 for row in rewards)),
        "frac_reward_zero_std": _mean([float(max(r) - min(r) <= EQUAL * max(map(abs, r))) for r in given]),
        "completions/mean_length": _mean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": 1.0 - len(finished) / len(rollouts),
        "samples": float(len(rollouts)),
    }
    if finished:
        metrics["completions/mean_terminated_length"] = _mean(finished)
    for name in names:
        values = [
            value for group in groups for events in group.events if (value := unweighted(events, name)) is not None
        ]
        if values:
            metrics[f"rewards/{name}/mean"] = _mean(values)
            metrics[f"rewards/{name}/std"] = _std(values)
    return metrics


def rollout_rows(groups: Sequence[ScoredGroup], advantages: Tensor | None) -> Iterator[dict[str, Any]]:
    """The answers of a step for `rollouts/`, with the advantage of their first token where they were trained on."""
    start = 0
    for number, group in enumerate(groups):
        for rollout, events in zip(group.group.rollouts, group.events, strict=True):
            row = {
                "group": number,
                "prompt_id": rollout.task.id,
                "prompt": rollout.task.content,
                "completion": rollout.completion,
                "reward": total(events),
                "rewards": {event.name: unweighted(events, event.name) for event in events},
                "length": rollout.length,
                "end": rollout.reason,
            }
            if advantages is not None and rollout.length:
                row["advantage"] = float(advantages[start])
            start += rollout.length
            yield row


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _std(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.hypot(*(value - mean for value in values)) / math.sqrt(len(values))
