"""Earlier groups, kept to be trained on again."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from reinlm.records import ScoredGroup


class Replay:
    """Groups of the last `age` steps; `draw` takes some of them at random, each at most once a draw."""

    def __init__(self, age: int, seed: int) -> None:
        self.age = age
        self.seed = seed
        self.kept: list[tuple[int, ScoredGroup]] = []
        """(step that sampled it, group)."""

    def draw(self, step: int, count: int) -> list[ScoredGroup]:
        """Up to `count` groups that are at most `age` steps old; fewer where there are fewer."""
        self.kept = [(made, group) for made, group in self.kept if step - made <= self.age]
        chosen = random.Random(f"{self.seed}/{step}/replay")
        return [group for _, group in chosen.sample(self.kept, min(count, len(self.kept)))]

    def add(self, step: int, groups: Sequence[ScoredGroup]) -> None:
        self.kept += [(step, group) for group in groups]

    def state_dict(self) -> dict[str, Any]:
        return {"kept": list(self.kept)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.kept = list(state["kept"])
