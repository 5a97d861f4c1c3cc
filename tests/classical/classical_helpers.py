"""Environments that do what a script says."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from reinlm.classical.worlds import Outcome, TableWorld

Step = tuple[int, float, bool, bool]
"""(next state, reward, terminated, truncated)"""


class Scripted(gym.Env[Any, Any]):
    """Begins in `first`, and then follows the script of an episode, whatever is done; scripts repeat."""

    def __init__(self, *scripts: list[Step], states: int = 3, actions: int = 2, first: int = 0) -> None:
        self.observation_space = spaces.Discrete(states)
        self.action_space = spaces.Discrete(actions)
        self.scripts = [list(script) for script in scripts]
        self.first, self.at = first, 0
        self.episode = -2  # an agent resets once when it is made
        self.taken: list[int] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.at = self.episode + 1, 0
        return self.first, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.taken.append(int(action))
        script = self.scripts[max(self.episode, 0) % len(self.scripts)]
        state, reward, terminated, truncated = script[self.at]
        self.at += 1
        return state, reward, terminated, truncated, {}


class Counter(gym.Env[Any, Any]):
    """Observes [step of the episode, number of the episode]; ends after `length` steps, by truncation or termination."""

    def __init__(self, length: int = 3, truncates: bool = True, box: bool = False) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32) if box else spaces.Discrete(2)
        self.length, self.truncates = length, truncates
        self.clock, self.number = 0, -1
        self.taken: list[Any] = []

    def see(self) -> np.ndarray:
        return np.array([self.clock, self.number], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.clock, self.number = 0, self.number + 1
        return self.see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken.append(action)
        self.clock += 1
        over = self.clock == self.length
        return self.see(), float(self.clock), over and not self.truncates, over and self.truncates, {}


class Walk(TableWorld):
    """Five states in a row, 1 to 5, from the middle; the left end pays -1, the right one +1. At random: v(s) = s/3 - 1."""

    P: ClassVar[dict[int, dict[int, list[Outcome]]]] = {
        state: {
            0: [(1.0, state - 1, -1.0 if state == 1 else 0.0, state == 1)],
            1: [(1.0, state + 1, 1.0 if state == 5 else 0.0, state == 5)],
        }
        for state in range(1, 6)
    }
    start: ClassVar[dict[int, float]] = {3: 1.0}
