"""Answers that the data hold, as groups of rollouts: rejection sampling without sampling."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reinlm.data import DataConfig, load_examples, load_tasks
from reinlm.data.loading import Found, find_rows
from reinlm.errors import InputError
from reinlm.models import Policy
from reinlm.records import NO_TURN, RewardEvent, Rollout, RolloutGroup, ScoredGroup, Segment, Task
from reinlm.rewards import RewardSet, TrainerState
from reinlm.rollouts import Sampled

REWARD = "reward"
"""The column of the rewards, where there is no reward function."""


@dataclass(frozen=True)
class StoredAnswers:
    """The answers of the data by prompt: the first row of each prompt is its task."""

    groups: Mapping[str, RolloutGroup]
    """By the id of the task."""
    skipped: Mapping[str, int]
    """Rows that were left out, by reason."""

    @property
    def tasks(self) -> list[Task]:
        return [group.task for group in self.groups.values()]

    def score(self, tasks: Sequence[Task], rewards: RewardSet | None, state: TrainerState) -> Sampled:
        """The answers to some of the tasks with their rewards: of the functions, or without any those of the column `reward`."""
        groups = [self.groups[task.id] for task in tasks]
        if rewards is None:
            return Sampled(
                tuple(ScoredGroup(g, tuple(rollout.events for rollout in g.rollouts)) for g in groups), {}, {}
            )
        found = rewards.score(groups, state)
        return Sampled(tuple(found.groups), found.failures, found.messages, found.usage)


def find_stored(data: DataConfig) -> Found:
    """The rows of stored answers. Raises InputError for rows without a prompt and a completion."""
    found = find_rows(data, "example")
    if found.names != ("prompt", "completion"):
        raise InputError(
            f"answers=data needs rows with prompt and completion, and these have {', '.join(found.names)}",
            hint="name the columns with data.columns, or leave answers out, so that the model answers",
        )
    return found


def load_stored(data: DataConfig, policy: Policy, *, max_tokens: int | None, rewarded: bool) -> StoredAnswers:
    """The stored answers of a data set, tokenised as in SFT; rows of equal prompts are one group.

    Args:
        rewarded: there is a reward function; otherwise each row has a number in the column `reward`.

    Raises:
        InputError: rows that cannot be used, and a row without its reward.
    """
    examples = load_examples(data, policy.tokenizer, max_tokens=max_tokens, found=find_stored(data))
    tasks = {task.id: task for task in load_tasks(data, policy.tokenizer).items}
    together: dict[str, list[Rollout]] = {}
    first: dict[str, Task] = {}
    for example in examples:
        own = tasks[example.id]
        key = json.dumps(own.content, ensure_ascii=False, sort_keys=True)
        task = first.setdefault(key, own)
        events = () if rewarded else (RewardEvent(REWARD, _reward(own)),)
        segment = Segment(example.token_ids, np.where(example.trained, 0, NO_TURN).astype(np.int16))
        completion = own.columns["completion"]
        together.setdefault(key, []).append(
            Rollout(
                task,
                (segment,),
                completion if isinstance(completion, str) else tuple(completion),
                terminated=True,
                truncated=False,
                reason="stored",
                events=events,
            )
        )
    groups = {task.id: RolloutGroup(task, tuple(together[key])) for key, task in first.items()}
    return StoredAnswers(groups, examples.skipped)


def _reward(task: Task) -> float:
    value = task.columns.get(REWARD)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
        raise InputError(
            f"{task.id}: column {REWARD!r} holds {value!r}, and stored answers without a reward function need a number there",
            hint="give reward=…, or fill the column",
        )
    return float(value)
