"""Replay: groups of earlier steps that are trained on again."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from reinlm.config import Config
from reinlm.records import ScoredGroup
from reinlm.runs.schema import pack_groups, unpack_groups
from reinlm.training.staleness import oldest_version


class ReplayConfig(Config):
    """Earlier groups mixed into each batch, with the sampler's log-probabilities as their old ones."""

    groups: int = Field(ge=1)
    """Groups mixed into each batch, drawn at random; fewer while there are fewer."""
    age: int = Field(4, ge=1)
    """A group is too old once the policy is more than this many steps' updates ahead of its oldest token's version."""


class Replay:
    """Groups that the policy has not moved far from; `draw` takes some of them at random, each at most once a draw.

    Args:
        updates: optimizer steps that a step of the run makes at most: what a step of `age` counts for.
    """

    def __init__(self, config: ReplayConfig, seed: int, updates: int) -> None:
        self.config = config
        self.seed = seed
        self.updates = updates
        self.kept: list[ScoredGroup] = []

    def draw(self, step: int, version: int) -> list[ScoredGroup]:
        """As many groups as the configuration asks for, none of them too old; fewer where there are fewer.

        Args:
            version: of the policy: optimizer steps made before this step.
        """
        oldest = version - self.config.age * self.updates
        self.kept = [group for group in self.kept if oldest_version(group) >= oldest]
        chosen = random.Random(f"{self.seed}/{step}/replay")
        return chosen.sample(self.kept, min(self.config.groups, len(self.kept)))

    def add(self, groups: Sequence[ScoredGroup]) -> None:
        self.kept += groups

    def state_dict(self) -> dict[str, Any]:
        rows, columns = pack_groups(self.kept)
        return {"rows": rows, "columns": columns}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.kept = unpack_groups(state["rows"], state["columns"])
