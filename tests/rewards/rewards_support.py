"""Rollouts to score, and reward functions that a worker process can import from this module."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from reinlm.records import NO_TURN, Rollout, RolloutGroup, Segment, Task


def make_group(
    name: str, completions: list[Any], *, content: Any = "2+2=", tokens: int = 3, end: str = "stop", **columns: Any
):
    """A group of answers of `tokens` tokens each, whose ids are 10, 11, …"""
    task = Task(id=name, content=content, columns=columns)
    segment = Segment(
        token_ids=np.array([1, 2, *range(10, 10 + tokens)]),
        turns=np.array([NO_TURN, NO_TURN, *[0] * tokens]),
        columns={"rollout_logprobs": np.full(tokens, -0.5), "version": np.zeros(tokens)},
    )
    rollouts = (
        Rollout(task, (segment,), completion, terminated=end == "stop", truncated=end == "length", reason=end)
        for completion in completions
    )
    return RolloutGroup(task, tuple(rollouts))


def write(folder: Path, body: str, name: str = "mine.py") -> str:
    """Write a file of reward functions; its path."""
    path = folder / name
    path.write_text(body, encoding="utf-8")
    return str(path)


def values(scored, name: str | None = None) -> list[list[float]]:
    """By answer, in order: the values of its events (of that reward)."""
    return [
        [event.value for event in events if name is None or event.name == name]
        for group in scored.groups
        for events in group.events
    ]


def longer_is_better(completions, **kwargs):
    """TRL's first example, as its documentation has it."""
    return [float(len(completion)) for completion in completions]


async def slowly(completions):
    """An async reward."""
    await asyncio.sleep(0.01)
    return [0.25 for _ in completions]
