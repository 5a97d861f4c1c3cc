"""Metrics of sampled groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from reinlm.objectives.groups import EQUAL
from reinlm.records import ScoredGroup, unweighted
from reinlm.rewards.attempts import Usage
from reinlm.rollouts.unrewarded import unrewarded

if TYPE_CHECKING:
    from torch import Tensor

    from reinlm.loop import StepContext
    from reinlm.models import Policy
    from reinlm.rollouts import RolloutConfig
    from reinlm.training.sampled_batch import SampledBatch
    from reinlm.training.sections import RunConfig


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
        "completions/min_length": float(min(lengths, default=0)),
        "completions/max_length": float(max(lengths, default=0)),
        "completions/clipped_ratio": 1.0 - len(finished) / len(rollouts) if rollouts else math.nan,
        "samples": float(sum(len(group.group.rollouts) for group in groups)),
    }
    if finished:
        metrics["completions/mean_terminated_length"] = _mean(finished)
    turns = [rollout.turns for rollout in rollouts]
    if max(turns, default=1) > 1:
        metrics["episodes/mean_turns"] = _mean(turns)
    failed = sum(rollout.failed for group in groups for rollout in group.group.rollouts)
    if failed:
        metrics["episodes/failed"] = float(failed)
    for name in names:
        events = [events for group in groups for events in group.events]
        values = [value for earned in events if (value := unweighted(earned, name)) is not None]
        if values:
            metrics[f"rewards/{name}/mean"] = _mean(values)
            metrics[f"rewards/{name}/std"] = _std(values)
    return metrics


def batch_metrics(
    batch: SampledBatch, names: Sequence[str], rollout: RolloutConfig, *, rewarded: bool = True
) -> dict[str, float]:
    """What was sampled for a step, what its rewards cost, and what became of its groups.

    Args:
        names: of the rewards.
        rewarded: an episode without a reward is counted as one that lacks it.
    """
    collected, sampling = batch.collected, batch.sampling
    metrics = sampled_metrics(collected.sampled, names) | usage_metrics(collected.usage)
    if rewarded:
        metrics |= unrewarded_metrics(collected.sampled)
    if rollout.temperature_end is not None:
        metrics["sampling/temperature"] = sampling.temperature
    if rollout.max_new_tokens_end is not None:
        metrics["sampling/max_new_tokens"] = float(sampling.max_new_tokens)
    return metrics | {
        "rewards/failed": float(collected.failures),
        "groups/attempts": float(collected.attempts),
        "groups/dropped": float(len(collected.sampled) - len(collected.kept)),
    }


def log_rollouts(
    step: int,
    context: StepContext,
    groups: Sequence[ScoredGroup],
    columns: Mapping[str, Tensor],
    *,
    run: RunConfig,
    policy: Policy,
) -> None:
    """Write the answers of a step to `rollouts/`, if it is one of those that `run.rollouts_every` names."""
    every = run.rollouts_every
    if context.rollouts is not None and every and (step == 1 or step % every == 0):
        context.rollouts.write(step, groups, columns, tokenizer=policy.tokenizer, max_episodes=run.rollouts_max)


def unrewarded_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """How many episodes have no reward, in all and by reason; empty where each has one."""
    counts = unrewarded(groups)
    metrics = {f"episodes/unrewarded/{reason}": float(count) for reason, count in counts.items()}
    return {"episodes/unrewarded": float(sum(counts.values())), **metrics} if counts else {}


def usage_metrics(usage: Mapping[str, Usage]) -> dict[str, float]:
    """By reward function: answers it failed on and further attempts, where there are some, seconds, and what it logged."""
    metrics: dict[str, float] = {}
    for name, used in usage.items():
        counts = {"failed": used.failed, "retries": used.retries}
        metrics |= {f"rewards/{name}/{what}": float(count) for what, count in counts.items() if count}
        metrics |= {f"rewards/{name}/logged/{metric}": total / count for metric, (total, count) in used.metrics.items()}
        metrics[f"time/reward/{name}"] = used.seconds
    return metrics


def _mean(values: Sequence[float]) -> float:
    try:
        return math.fsum(values) / len(values) if values else math.nan
    except OverflowError:  # the sum is beyond the largest float, the mean need not be
        return math.fsum(value / len(values) for value in values)


def _std(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.hypot(*(value - mean for value in values)) / math.sqrt(len(values))
