"""Rollouts to score, and reward functions that a worker process can import from this module."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from reinlm.records import End, Prompt, Rollout, RolloutGroup, Segment


def make_group(
    name: str, completions: list[Any], *, content: Any = "2+2=", tokens: int = 3, end: End = "stop", **columns: Any
):
    """A group of answers of `tokens` tokens each, whose ids are 10, 11, …"""
    prompt = Prompt(id=name, content=content, token_ids=(1, 2), columns=columns)
    segment = Segment(
        token_ids=(1, 2, *range(10, 10 + tokens)),
        chosen=(False, False, *[True] * tokens),
        rollout_logprobs=(-0.5,) * tokens,
        versions=(0,) * tokens,
        end=end,
    )
    return RolloutGroup(prompt, tuple(Rollout(prompt, (segment,), completion) for completion in completions))


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
