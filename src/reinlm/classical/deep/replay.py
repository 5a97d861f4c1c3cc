"""A memory of transitions in contiguous arrays of fixed size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reinlm.errors import InputError


@dataclass(frozen=True)
class Transitions:
    """N transitions drawn from the memory.

    Example: with n = 1, (s, a, r, s', terminated) and discount γ; with n = 3, r is the discounted sum of three rewards, s' the
    state after them, and the discount γ³.
    """

    observations: Tensor
    """[N, O]"""
    actions: Tensor
    """[N]"""
    rewards: Tensor
    """[N]"""
    successors: Tensor
    """[N, O] the true successors: final observations, where an episode was cut off."""
    terminated: Tensor
    """[N] bool: terminated, not truncated."""
    discounts: Tensor
    """[N] what the successor's value is multiplied by."""


class Replay:
    """The newest `capacity` transitions; older ones are overwritten. Lin (1992).

    Raises InputError where the arrays would take more than `max_bytes`.
    """

    def __init__(self, capacity: int, inputs: int, max_bytes: int) -> None:
        need = capacity * (2 * inputs * 4 + 8 + 4 + 1 + 4)
        if need > max_bytes:
            raise InputError(
                f"a replay of {capacity:,} transitions with observations of {inputs} numbers takes {need / 2**30:.1f} GiB, "
                f"more than max_bytes {max_bytes / 2**30:.1f} GiB",
                hint="lower capacity, or raise max_bytes",
            )
        self.capacity = capacity
        self.observations = np.zeros((capacity, inputs), dtype=np.float32)
        self.successors = np.zeros((capacity, inputs), dtype=np.float32)
        self.actions = np.zeros(capacity, dtype=np.int64)
        self.rewards = np.zeros(capacity, dtype=np.float32)
        self.terminated = np.zeros(capacity, dtype=bool)
        self.discounts = np.zeros(capacity, dtype=np.float32)
        self.added = 0
        """Transitions ever added; the next one stands at `added % capacity`."""

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(
        self,
        observation: np.ndarray,
        action: int,
        reward: float,
        successor: np.ndarray,
        terminated: bool,
        discount: float,
    ) -> None:
        """Add one transition, over the oldest where the memory is full."""
        at = self.added % self.capacity
        self.observations[at] = observation
        self.actions[at] = action
        self.rewards[at] = reward
        self.successors[at] = successor
        self.terminated[at] = terminated
        self.discounts[at] = discount
        self.added += 1

    def sample(self, number: int, rng: np.random.Generator) -> Transitions:
        """`number` transitions drawn uniformly, with replacement."""
        at = rng.integers(len(self), size=number)
        arrays = (
            self.observations,
            self.actions,
            self.rewards,
            self.successors,
            self.terminated,
            self.discounts,
        )
        return Transitions(*(torch.from_numpy(array[at]) for array in arrays))

    def state_dict(self) -> dict[str, Any]:
        """The filled part alone."""
        names = ("observations", "successors", "actions", "rewards", "terminated", "discounts")
        return {"added": self.added, **{name: getattr(self, name)[: len(self)].copy() for name in names}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.added = int(state["added"])
        for name in ("observations", "successors", "actions", "rewards", "terminated", "discounts"):
            getattr(self, name)[: len(self)] = state[name]
