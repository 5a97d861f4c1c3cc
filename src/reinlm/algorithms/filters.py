"""Which groups are worth training on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from reinlm.objectives import choice
from reinlm.objectives.groups import EQUAL
from reinlm.records import ScoredGroup
from reinlm.records import total as outcome


class GroupFilter(Protocol):
    """True keeps a group; a group that is dropped is sampled anew from another prompt."""

    def __call__(self, group: ScoredGroup) -> bool: ...


@choice("filter", "mixed_outcomes")
@dataclass(frozen=True)
class MixedOutcomes:
    """Dynamic sampling of DAPO, arXiv 2503.14476 §3.2: keep a group only if some answers are right and some wrong.

    It looks at rewards as the functions gave them, before any shaping, which would make every group look mixed: at the
    reward named `reward`, or where None is named at the weighted sum of all.
    """

    reward: str | None = None

    def __call__(self, group: ScoredGroup) -> bool:
        values = [value for events in group.events if (value := outcome(events, self.reward)) is not None]
        if not values:
            return False
        return max(values) - min(values) > EQUAL * max(abs(value) for value in values)
