"""Running statistics: observations to mean 0 and deviation 1, rewards by the deviation of the discounted return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

BOUND = 10.0
"""What is normalised is clipped to ±10."""


class Moments:
    """Mean and population variance of everything seen, in float64. Chan, Golub & LeVeque (1979)."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.mean = np.zeros(shape)
        self.variance = np.ones(shape)
        self.count = 0.0

    def update(self, batch: np.ndarray) -> None:
        """Take in `batch` [items, *shape]."""
        number = len(batch)
        total = self.count + number
        if not number:
            return
        mean, variance = batch.mean(0), batch.var(0)
        delta = mean - self.mean
        spread = self.variance * self.count + variance * number + delta**2 * self.count * number / total
        self.mean = self.mean + delta * number / total
        self.variance = spread / total
        self.count = total

    def state_dict(self) -> dict[str, Any]:
        return {"mean": np.array(self.mean), "variance": np.array(self.variance), "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mean, self.variance, self.count = state["mean"].copy(), state["variance"].copy(), float(state["count"])


class Observations(Moments):
    """(o - μ) / sqrt(σ² + 1e-8), clipped to ±10."""

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        scaled = (observations - self.mean) / np.sqrt(self.variance + 1e-8)
        return np.clip(scaled, -BOUND, BOUND).astype(np.float32)


class Rewards(Moments):
    """r / sqrt(var of the discounted return + 1e-8), clipped to ±10: scaled, never shifted."""

    def __init__(self, environments: int, discount: float) -> None:
        super().__init__()
        self.discount = discount
        self.running = np.zeros(environments)

    def __call__(self, rewards: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Take in a step of all environments; `ends` are those whose episode it ended."""
        self.running = self.running * self.discount + rewards
        self.update(self.running)
        self.running = np.where(ends, 0.0, self.running)
        return np.clip(rewards / np.sqrt(self.variance + 1e-8), -BOUND, BOUND)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "running": self.running.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if len(state["running"]) == len(self.running):  # else other environments, whose episodes begin again
            self.running = state["running"].copy()
