"""Group filters (dynamic sampling): which groups are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from reinlm.objectives import choice
from reinlm.objectives.groups import EQUAL
from reinlm.records import ScoredGroup, total


class GroupFilter(Protocol):
    """Returns True to keep a group; a dropped group is replaced by one of another prompt."""

    def __call__(self, group: ScoredGroup) -> bool: ...


SUM = "sum"
RIGHT_ABOVE = 0.5
"""An answer is right where its reward is more than this, if nothing else is said."""


@choice("filter", "mixed_outcomes")
@dataclass(frozen=True)
class MixedOutcomes:
    """Dynamic sampling of DAPO, arXiv 2503.14476 §3.2: keep a group only if some answers are right and some wrong.

    It reads rewards before weights and shaping: a length penalty would make every group mixed. An answer is right where its
    reward is more than `correct_above`, as in evaluation; answers without that reward are ignored.
    """

    reward: str | None = None
    """Name of the reward that says whether an answer is right; None: the first one. "sum": the weighted sum of all, where any
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
    """Replace `reward=None` (the first reward) by `name`, the recipe's first reward function, and its bound by evaluation's.

    Without this, an environment's rewards would come first, or the second function where the first gave None.

    Args:
        name: of the first reward function; None where only an environment gives rewards.
        correct_above: the bound of evaluation, for filters on that reward without a bound of their own.
    """

    def bound(one: GroupFilter) -> GroupFilter:
        if not isinstance(one, MixedOutcomes) or one.reward not in (None, name):
            return one
        above = correct_above if one.correct_above is None else one.correct_above
        return replace(one, reward=name, correct_above=above)

    return tuple(bound(one) for one in filters)


def first_reward(group: ScoredGroup) -> str | None:
    """The first reward of the recipe: that of the first event of an answer that got the most kinds of reward.

    Events are in the order of the recipe; a reward that was not given has none. None for a group without events.
    """
    fullest = max(group.events, key=lambda events: len({event.name for event in events}), default=())
    return fullest[0].name if fullest else None
