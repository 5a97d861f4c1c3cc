"""Earlier groups, kept to be trained on again."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from reinlm.records import ScoredGroup
from reinlm.training.config import ReplayConfig


class Replay:
    """Groups of the last steps; `draw` takes some of them at random, each at most once a draw."""

    def __init__(self, config: ReplayConfig, seed: int) -> None:
        self.config = config
        self.seed = seed
        self.kept: list[tuple[int, ScoredGroup]] = []
        """(step that sampled it, group)."""

    def draw(self, step: int) -> list[ScoredGroup]:
        """As many groups as the configuration asks for, none of them too old; fewer where there are fewer."""
        self.kept = [(made, group) for made, group in self.kept if step - made <= self.config.age]
        chosen = random.Random(f"{self.seed}/{step}/replay")
        return [group for _, group in chosen.sample(self.kept, min(self.config.groups, len(self.kept)))]

    def add(self, step: int, groups: Sequence[ScoredGroup]) -> None:
        self.kept += [(step, group) for group in groups]

    def state_dict(self) -> dict[str, Any]:
        return {"kept": list(self.kept)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.kept = list(state["kept"])
