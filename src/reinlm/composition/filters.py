"""Which groups are worth training on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from reinlm.objectives import choice
from reinlm.objectives.groups import EQUAL
from reinlm.records import ScoredGroup, total


class GroupFilter(Protocol):
    """True keeps a group; a group that is dropped is sampled anew from another prompt."""

    def __call__(self, group: ScoredGroup) -> bool: ...


SUM = "sum"
RIGHT_ABOVE = 0.5
"""An answer is right where its reward is more than this, if nothing else is said."""


@choice("filter", "mixed_outcomes")
@dataclass(frozen=True)
class MixedOutcomes:
    """Dynamic sampling of DAPO, arXiv 2503.14476 §3.2: keep a group only if some answers are right and some wrong.

    It looks at rewards as the functions gave them, before weights and shaping, which would make every group look mixed. An
    answer is right where its reward is more than `correct_above`; answers without that reward say nothing.
    """

    reward: str | None = None
    """Name of the reward that tells right from wrong; None: the first one. "sum": the weighted sum of all, where any
    difference keeps a group."""
    correct_above: float | None = None
    """None: that of the evaluation where it looks at the same reward (`evaluation.correct_above`), else 0.5."""

    def __post_init__(self) -> None:
        if self.correct_above is not None and not abs(self.correct_above) < float("inf"):
            raise ValueError(f"mixed outcomes: correct_above must be finite, not {self.correct_above}")
        if self.reward == SUM and self.correct_above not in (None, RIGHT_ABOVE):
            raise ValueError("mixed outcomes: correct_above has no effect on the sum of rewards; leave it out")

    def __call__(self, group: ScoredGroup) -> bool:
        if self.reward == SUM:
            values = [value for events in group.events if (value := total(events)) is not None]
            return bool(values) and max(values) - min(values) > EQUAL * max(abs(value) for value in values)
        name = first_reward(group) if self.reward is None else self.reward
        given = [[event.value for event in events if event.name == name] for events in group.events]
        above = RIGHT_ABOVE if self.correct_above is None else self.correct_above
        return len({sum(values) > above for values in given if values}) == 2


def with_first_reward(
    filters: Sequence[GroupFilter], name: str | None, correct_above: float = RIGHT_ABOVE
) -> tuple[GroupFilter, ...]:
    """The filters, those that look at the first reward bound to the name of the recipe's first reward function.

    An environment's rewards stand before it, and where it said nothing of a group the second one is not asked instead.

    Args:
        name: of the first reward function; None where only an environment gives rewards.
        correct_above: what evaluation holds the first reward against, for filters on it that say nothing themselves.
    """

    def bound(one: GroupFilter) -> GroupFilter:
        if not isinstance(one, MixedOutcomes) or one.reward not in (None, name):
            return one
        above = correct_above if one.correct_above is None else one.correct_above
        return replace(one, reward=name, correct_above=above)

    return tuple(bound(one) for one in filters)


def first_reward(group: ScoredGroup) -> str | None:
    """The first reward of the recipe: that of the first event of an answer that got the most kinds of reward.

    Events stand in the order of the recipe, and a reward that was not given leaves none. None for a group without events.
    """
    fullest = max(group.events, key=lambda events: len({event.name for event in events}), default=())
    return fullest[0].name if fullest else None
