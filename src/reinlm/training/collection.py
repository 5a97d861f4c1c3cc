"""One batch of scored groups: sample, reward, shape and filter, and what there is to say about it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from reinlm.algorithms import Algorithm
from reinlm.data import PromptOrder
from reinlm.errors import RunError
from reinlm.models import Policy
from reinlm.objectives.groups import EQUAL
from reinlm.records import Prompt, ScoredGroup, outcome
from reinlm.rewards import RewardSet, TrainerState
from reinlm.rollouts import Engine, collect
from reinlm.training.config import RolloutConfig
from reinlm.training.setup import Phases


@dataclass(frozen=True)
class Collected:
    """What one step has to train on."""

    kept: list[ScoredGroup]
    sampled: list[ScoredGroup]
    """All groups, those that filters dropped included."""
    shaping: list[float]
    """What the algorithm's shapers add to the reward of every kept rollout."""
    metrics: dict[str, float]
    nothing_left: str | None
    """Why nothing was kept."""


class Collector:
    """Samples groups until the batch is full, or the attempts are used up."""

    def __init__(
        self,
        config: RolloutConfig,
        algorithm: Algorithm,
        engine: Engine,
        policy: Policy,
        prompts: Sequence[Prompt],
        order: PromptOrder,
        rewards: RewardSet,
        seed: int,
    ) -> None:
        self.config = config
        self.algorithm = algorithm
        self.engine = engine
        self.policy = policy
        self.prompts = prompts
        self.order = order
        self.rewards = rewards
        self.seed = seed

    def collect(self, step: int, state: TrainerState, phases: Phases) -> Collected:
        """The groups of one step. Raises RunError where not one answer got a reward."""
        wanted = self.config.groups
        kept: list[ScoredGroup] = []
        sampled: list[ScoredGroup] = []
        failed = 0
        attempts = 0
        while len(kept) < wanted and attempts < self.config.max_attempts:
            prompts = [self.prompts[index] for index in self.order.take(wanted - len(kept))]
            for number, wave in enumerate(_waves(prompts)):
                with phases("rollout"):
                    groups = collect(
                        self.engine,
                        wave,
                        group_size=self.config.group_size,
                        sampling=self.config.sampling(self.policy.stops),
                        seed=self.seed,
                        tag=f"{step}/{attempts}/{number}",
                        tokenizer=self.policy.tokenizer,
                    )
                with phases("reward"):
                    scored = self.rewards.score(groups, state)
                failed += sum(scored.failures.values())
                sampled += scored.groups
                passed = [group for group in scored.groups if all(keep(group) for keep in self.algorithm.filters)]
                if "greedy" in self.algorithm.advantage.needs:
                    passed = self._with_baselines(passed, f"{step}/{attempts}/{number}", state, phases)
                kept += passed
            attempts += 1
            if not self.algorithm.filters:
                break
        if all(reward is None for group in sampled for reward in group.rewards):
            raise RunError(
                f"step {step}: not one of {len(sampled) * self.config.group_size} answers got a reward",
                hint="a reward function returned None for, or failed on, every one of them",
            )
        shaping = self.shape(kept)
        metrics = sampled_metrics(sampled, self.rewards.names)
        metrics |= {"rewards/failed": float(failed), "groups/attempts": float(attempts)}
        metrics["groups/dropped"] = float(len(sampled) - len(kept))
        if self.algorithm.shapers and kept:
            metrics["rewards/shaping/mean"] = sum(shaping) / len(shaping)
        nothing = None
        if not kept:
            nothing = f"{self.algorithm.name} kept none of {len(sampled)} groups in {attempts} attempts: nothing to learn from"
        return Collected(kept, sampled, shaping, metrics, nothing)

    def _with_baselines(
        self, groups: Sequence[ScoredGroup], tag: str, state: TrainerState, phases: Phases
    ) -> list[ScoredGroup]:
        """The groups with the reward of the policy's greedy answer to each prompt."""
        greedy = self.config.sampling(self.policy.stops)
        with phases("rollout"):
            answers = collect(
                self.engine,
                [group.group.prompt for group in groups],
                group_size=1,
                sampling=replace(greedy, temperature=0.0),
                seed=self.seed,
                tag=f"{tag}/greedy",
                tokenizer=self.policy.tokenizer,
            )
        with phases("reward"):
            scored = self.rewards.score(answers, state)
        rewards = [group.rewards[0] for group in scored.groups]
        return [replace(group, baseline=reward) for group, reward in zip(groups, rewards, strict=True)]

    def shape(self, groups: Sequence[ScoredGroup]) -> list[float]:
        """What the algorithm's shapers add to the reward of every rollout."""
        rollouts = [rollout for group in groups for rollout in group.group.rollouts]
        lengths = torch.tensor([rollout.length for rollout in rollouts], dtype=torch.long)
        truncated = torch.tensor([rollout.truncated for rollout in rollouts], dtype=torch.bool)
        added = torch.zeros(len(lengths), dtype=torch.float64)
        for shaper in self.algorithm.shapers:
            added = added + shaper(lengths, truncated, self.config.max_new_tokens)
        return [float(value) for value in added.tolist()]


def _waves(prompts: Sequence[Prompt]) -> Iterator[list[Prompt]]:
    """The prompts in turns without repetition: a small data set may come round twice within one batch."""
    rest = list(prompts)
    while rest:
        wave: dict[str, Prompt] = {}
        later = []
        for prompt in rest:
            if prompt.id in wave:
                later.append(prompt)
            else:
                wave[prompt.id] = prompt
        yield list(wave.values())
        rest = later


def sampled_metrics(groups: Sequence[ScoredGroup], names: Sequence[str]) -> dict[str, float]:
    """What was sampled, before filters and shaping; names as in TRL where it has them."""
    rollouts = [rollout for group in groups for rollout in group.group.rollouts]
    lengths = [rollout.length for rollout in rollouts]
    finished = [rollout.length for rollout in rollouts if not rollout.truncated]
    rewards = [[reward for reward in group.rewards if reward is not None] for group in groups]
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
            value for group in groups for events in group.events if (value := outcome_value(events, name)) is not None
        ]
        if values:
            metrics[f"rewards/{name}/mean"] = _mean(values)
            metrics[f"rewards/{name}/std"] = _std(values)
    return metrics


def outcome_value(events: Sequence[Any], name: str) -> float | None:
    """The unweighted sum of one reward's events, None where it has none."""
    values = [event.value for event in events if event.name == name]
    return sum(values) if values else None


def rollout_rows(groups: Sequence[ScoredGroup], advantages: Tensor | None) -> Iterator[dict[str, Any]]:
    """The answers of a step for `rollouts/`, with the advantage of their first token where they were trained on."""
    start = 0
    for number, group in enumerate(groups):
        for rollout, events in zip(group.group.rollouts, group.events, strict=True):
            row = {
                "group": number,
                "prompt_id": rollout.prompt.id,
                "prompt": rollout.prompt.content,
                "completion": rollout.completion,
                "reward": outcome(events),
                "rewards": {event.name: outcome_value(events, event.name) for event in events},
                "length": rollout.length,
                "end": rollout.end,
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
