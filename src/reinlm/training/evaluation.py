"""Scoring a model: accuracy with an interval, pass@k, length, and the answers themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from reinlm.records import Prompt, ScoredGroup, outcome
from reinlm.rewards import RewardSet, TrainerState
from reinlm.rollouts import Engine, Sampling, SamplingConfig, collect
from reinlm.training.config import EvaluationConfig

_Z = 1.959963984540054  # 97.5 % quantile of the normal distribution


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found on one set of prompts."""

    metrics: dict[str, float]
    """accuracy, accuracy_low, accuracy_high, pass@k, reward, rewards/NAME, mean_length, clipped_ratio, failed."""
    groups: tuple[ScoredGroup, ...]
    correct: tuple[tuple[bool | None, ...], ...]
    """For every group, whether each answer is right; None where no reward was given."""


def evaluate(
    engine: Engine,
    prompts: Sequence[Prompt],
    rewards: RewardSet,
    *,
    sampling: Sampling,
    samples: int,
    tokenizer: Any,
    seed: int,
    tag: str,
    correct_above: float = 0.5,
    state: TrainerState | None = None,
) -> Evaluation:
    """Sample `samples` answers to every prompt and score them.

    An answer is right where the first reward function gives more than `correct_above`. The same seed and tag give the same
    answers from the same weights.
    """
    groups = collect(engine, prompts, group_size=samples, sampling=sampling, seed=seed, tag=tag, tokenizer=tokenizer)
    scored = rewards.score(groups, state or TrainerState())
    name = rewards.names[0]
    correct = tuple(
        tuple(None if (value := _plain(events, name)) is None else value > correct_above for events in group.events)
        for group in scored.groups
    )
    metrics = {**accuracy_metrics(correct), **answer_metrics(scored.groups, rewards.names)}
    metrics["failed"] = float(sum(scored.failures.values()))
    return Evaluation(metrics, tuple(scored.groups), correct)


def evaluation_sampling(
    config: EvaluationConfig, stops: Sequence[int], training: SamplingConfig | None = None
) -> Sampling:
    """How evaluation samples: its own temperature and truncation; length and stops as in training where not set."""
    base = training or SamplingConfig()
    return replace(
        base.sampling(stops),
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        max_new_tokens=config.max_new_tokens or base.max_new_tokens,
    )


def _plain(events: Sequence[Any], name: str) -> float | None:
    values = [event.value for event in events if event.name == name]
    return sum(values) if values else None


def accuracy_metrics(correct: Sequence[Sequence[bool | None]]) -> dict[str, float]:
    """accuracy with its 95 % interval, and the unbiased pass@k for k = 1, 2, 4, … up to the answers to a prompt.

    Answers without a verdict are left out. Empty where there is no verdict at all.
    """
    rows = [[bool(c) for c in row if c is not None] for row in correct]
    rows = [row for row in rows if row]
    if not rows:
        return {}
    low, high = interval(rows)
    metrics = {"accuracy": sum(map(sum, rows)) / sum(map(len, rows)), "accuracy_low": low, "accuracy_high": high}
    fewest = min(map(len, rows))
    for k in (2**power for power in range(fewest.bit_length())):
        metrics[f"pass@{k}"] = sum(pass_at_k(len(row), sum(row), k) for row in rows) / len(rows)
    return metrics


def pass_at_k(n: int, correct: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the chance that k of n answers, drawn without replacement, hold a right one.

    Chen et al., arXiv 2107.03374 eq. 1.
    """
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def interval(rows: Sequence[Sequence[bool]]) -> tuple[float, float]:
    """Wilson's 95 % interval for the share of True, with answers to one prompt counted as one cluster.

    The effective number of answers is p(1 - p) over the variance that the prompts' means show, at least the number of
    prompts and at most the number of answers. Answers that are all alike, or all to one prompt, show no variance to go
    by: each prompt counts once.
    """
    total = sum(map(len, rows))
    p = sum(map(sum, rows)) / total
    prompts = len(rows)
    spread = sum((sum(row) - p * len(row)) ** 2 for row in rows) / total**2
    if prompts > 1:
        spread *= prompts / (prompts - 1)
    shows_nothing = prompts == 1 or p in (0.0, 1.0)
    effective = prompts if shows_nothing else p * (1 - p) / spread if spread > 0 else total
    n = min(max(effective, prompts), total)
    center = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    return (center - half if p > 0.0 else 0.0), (center + half if p < 1.0 else 1.0)


def answer_metrics(groups: Sequence[ScoredGroup], names: Sequence[str]) -> dict[str, float]:
    """Means over answers: the weighted reward, every reward by name, length in tokens, share cut off."""
    rollouts = [rollout for group in groups for rollout in group.group.rollouts]
    events = [item for group in groups for item in group.events]
    metrics: dict[str, float] = {}
    totals = [value for item in events if (value := outcome(item)) is not None]
    if totals:
        metrics["reward"] = sum(totals) / len(totals)
    for name in names:
        values = [value for item in events if (value := _plain(item, name)) is not None]
        if values:
            metrics[f"rewards/{name}"] = sum(values) / len(values)
    metrics["mean_length"] = sum(rollout.length for rollout in rollouts) / len(rollouts)
    metrics["clipped_ratio"] = sum(rollout.truncated for rollout in rollouts) / len(rollouts)
    return metrics


def sample_rows(evaluation: Evaluation, count: int = 16) -> list[dict[str, Any]]:
    """The first answer to each of the first prompts, for people to read."""
    rows = []
    for group, correct in list(zip(evaluation.groups, evaluation.correct, strict=True))[:count]:
        rollout = group.group.rollouts[0]
        rows.append(
            {
                "prompt": rollout.prompt.content,
                "completion": rollout.completion,
                "reward": group.rewards[0],
                "correct": correct[0],
                "end": rollout.end,
                "answer": rollout.prompt.columns.get("answer"),
            }
        )
    return rows
