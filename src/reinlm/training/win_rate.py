"""The win rate of a model's answers against those of another model, or against answers in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from reinlm.data import DataConfig
from reinlm.errors import InputError
from reinlm.intervals import interval
from reinlm.models import Policy
from reinlm.objectives.win_rate import outcomes
from reinlm.records import RolloutGroup, ScoredGroup, Task
from reinlm.rewards import RewardSet, TrainerState
from reinlm.training.rejection.stored import load_stored

_FILES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".csv", ".csv.gz", ".parquet")


def is_file_of_answers(place: str) -> bool:
    """Whether what a model is compared with is a file of answers, and no model."""
    return place.lower().endswith(_FILES)


def win_rate_metrics(ours: Sequence[ScoredGroup], theirs: Mapping[str, ScoredGroup]) -> dict[str, float]:
    """Answers to the same prompt compared by their weighted reward: the higher one wins, equal ones tie.

    Answer j of ours meets answer j of theirs, the fewer from the front again. A pair of which one has no reward is left out
    and counted in `unpaired`. The 95 % interval is Wilson's with each prompt as one cluster; a tie counts half, which makes it
    wider than it need be. Only `unpaired` where no pair is left.

    Args:
        theirs: by the id of the task.
    """
    rows: list[list[float]] = []
    unpaired = 0
    for group in ours:
        mine, other = group.returns, theirs[group.group.task.id].returns
        pairs = [(mine[j % len(mine)], other[j % len(other)]) for j in range(max(len(mine), len(other)))]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        unpaired += len(pairs) - len(known)
        if known:
            both = torch.tensor(known, dtype=torch.float64)
            rows.append(outcomes(both[:, 0], both[:, 1]).tolist())
    flat = [value for row in rows for value in row]
    if not flat:
        return {"unpaired": float(unpaired)}
    low, high = interval(rows)
    return {
        "win_rate": sum(flat) / len(flat),
        "win_rate_low": low,
        "win_rate_high": high,
        "wins": float(flat.count(1.0)),
        "ties": float(flat.count(0.5)),
        "losses": float(flat.count(0.0)),
        "unpaired": float(unpaired),
    }


def stored_answers(
    file: str, tasks: Sequence[Task], policy: Policy, rewards: RewardSet, data: DataConfig
) -> dict[str, ScoredGroup]:
    """The answers in a file (rows with prompt and completion, as `output` of eval writes them) to tasks, with their rewards.

    Raises InputError where a task has no answer there.
    """
    if not Path(file).is_file():
        raise InputError(
            f"against: no such file: {file}", hint="give a model, a run, or a file that eval --output wrote"
        )
    config = DataConfig(
        path=file, chat="messages", chat_template_kwargs=data.chat_template_kwargs, renderer=data.renderer
    )
    stored = load_stored(config, policy, max_tokens=None, rewarded=True)
    known = {_key(group.task.content): group for group in stored.groups.values()}
    missing = [task for task in tasks if _key(task.content) not in known]
    if missing:
        raise InputError(
            f"against: {file} has no answer to {len(missing)} of {len(tasks)} prompts, the first: {missing[0].id}",
            hint="a row has prompt and completion; evaluate the other model on this set with output=FILE",
        )
    groups = [
        RolloutGroup(task, tuple(replace(one, task=task) for one in known[_key(task.content)].rollouts))
        for task in tasks
    ]
    scored = rewards.score(groups, TrainerState(evaluating=True)).groups
    return {group.group.task.id: group for group in scored}


def _key(content: Any) -> str:
    """A prompt as one text; a single user message is its content."""
    if not isinstance(content, str) and len(content) == 1 and content[0].get("role") == "user":
        content = content[0]["content"]
    return json.dumps(content, ensure_ascii=False, sort_keys=True)
