"""Earlier groups, kept to be trained on again."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from reinlm.config import Config
from reinlm.records import ScoredGroup
from reinlm.runs.schema import pack_groups, unpack_groups


class ReplayConfig(Config):
    """Earlier groups mixed into each batch, with the sampler's log-probabilities as their old ones."""

    groups: int = Field(ge=1)
    """Groups mixed into each batch, drawn at random; fewer while there are fewer."""
    age: int = Field(4, ge=1)
    """Steps after which a group is too old to be mixed in."""


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
        rows, columns = pack_groups([group for _, group in self.kept])
        return {"steps": [step for step, _ in self.kept], "rows": rows, "columns": columns}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.kept = list(zip(state["steps"], unpack_groups(state["rows"], state["columns"]), strict=True))
