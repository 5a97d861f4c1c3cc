"""Shapers: reward events that an algorithm adds before it computes advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from reinlm.errors import InputError
from reinlm.objectives import choice, missing_end_penalty, soft_overlong_penalty
from reinlm.records import RewardEvent, ScoredGroup

Events = tuple[RewardEvent, ...]


class Shaper(Protocol):
    """(scored group, the sampler's limit in tokens) -> for every rollout the reward events to add."""

    @property
    def name(self) -> str:
        """The name of the reward events that it adds."""

    def __call__(self, group: ScoredGroup, limit: int) -> tuple[Events, ...]: ...

    def check(self, limit: int) -> None:
        """Raise InputError if it cannot have an effect at this limit in tokens."""


def shaped(group: ScoredGroup, shapers: Sequence[Shaper], limit: int) -> ScoredGroup:
    """The group with the events of all shapers in `shaping`; earned rewards stay unchanged."""
    if not shapers:
        return group
    added = [shaper(group, limit) for shaper in shapers]
    return replace(group, shaping=tuple(tuple(e for events in row for e in events) for row in zip(*added, strict=True)))


@choice("shaper", "soft_overlong")
@dataclass(frozen=True)
class SoftOverlong:
    """DAPO's soft overlong punishment, arXiv 2503.14476 eq. 13: from 0 down to -1 over the last `cache` tokens.

    `max_length` None is the sampler's limit (in the paper 20480 tokens); a `cache` below 1 is a fraction of it (the paper's
    4096 tokens are 0.2). Raises InputError where the sampler's limit is too low for any answer to be punished.
    """

    max_length: int | None = None
    """Tokens at which the penalty is -1; None: the sampler's limit."""
    cache: float = 0.2
    """Tokens over which the penalty grows; below 1 a fraction of `max_length`."""
    name = "overlong"

    def __post_init__(self) -> None:
        if self.max_length is not None and self.max_length < 1:
            raise ValueError(f"soft overlong: max_length must be at least 1 token, not {self.max_length}")
        if not 0 <= self.cache < float("inf") or (self.cache >= 1 and self.cache != int(self.cache)):
            raise ValueError(f"soft overlong: cache is a fraction below 1 or a number of tokens, not {self.cache}")

    def _bounds(self, limit: int) -> tuple[int, int]:
        longest = limit if self.max_length is None else self.max_length
        cache = round(self.cache * longest) if self.cache < 1 else int(self.cache)
        return longest, min(cache, longest)

    def check(self, limit: int) -> None:
        longest, cache = self._bounds(limit)
        if longest - cache >= limit:
            raise InputError(
                f"soft overlong: answers end at {limit} tokens, and the punishment would begin only after {longest - cache}",
                hint="raise rollout.max_new_tokens, or lower the shaper's max_length",
            )

    def __call__(self, group: ScoredGroup, limit: int) -> tuple[Events, ...]:
        longest, cache = self._bounds(limit)
        lengths = torch.tensor([rollout.length for rollout in group.group.rollouts], dtype=torch.long)
        return tuple((RewardEvent(self.name, x),) for x in soft_overlong_penalty(lengths, longest, cache).tolist())


@choice("shaper", "missing_end")
@dataclass(frozen=True)
class MissingEnd:
    """-penalty for an answer without a stop token, which a limit truncated."""

    penalty: float = 1.0
    """In units of the reward; more than 0."""
    name = "missing_end"

    def __post_init__(self) -> None:
        if not 0.0 < self.penalty < float("inf"):
            raise ValueError(f"missing end: the penalty must be more than 0 and finite, not {self.penalty}")

    def check(self, limit: int) -> None:
        """Accepts any limit."""

    def __call__(self, group: ScoredGroup, limit: int) -> tuple[Events, ...]:
        truncated = torch.tensor([rollout.truncated for rollout in group.group.rollouts], dtype=torch.bool)
        penalties = missing_end_penalty(truncated, self.penalty).tolist()
        return tuple((RewardEvent(self.name, x),) for x in penalties)
