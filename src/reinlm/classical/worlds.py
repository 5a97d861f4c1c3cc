"""Small worlds of Sutton & Barto (2018) that Gymnasium lacks, registered as `reinlm/…`."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Outcome = tuple[float, int, float, bool]
"""(probability, next state, reward, terminated), as in Gymnasium's own tables `P[state][action]`."""


class TableWorld(gym.Env[Any, Any]):
    """A world that is its table: `P[state][action]` lists outcomes; a state may have fewer actions than others."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 - as Gymnasium declares it
    P: ClassVar[dict[int, dict[int, list[Outcome]]]]
    start: ClassVar[dict[int, float]]
    """state -> probability."""
    shape: ClassVar[tuple[int, int] | None] = None
    """Rows and columns, for a picture."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Discrete(1 + max(*self.P, *self._successors()))
        self.action_space = spaces.Discrete(1 + max(action for actions in self.P.values() for action in actions))
        self.s = 0

    def _successors(self) -> list[int]:
        return [o[1] for actions in self.P.values() for outcomes in actions.values() for o in outcomes]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        states = list(self.start)
        self.s = states[self._draw([self.start[state] for state in states])]
        return self.s, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        outcomes = self.P[self.s].get(int(action))
        if outcomes is None:
            raise ValueError(f"state {self.s} has actions {sorted(self.P[self.s])}, not {action}")
        _, self.s, reward, terminated = outcomes[self._draw([o[0] for o in outcomes])]
        return self.s, self.reward(reward), terminated, False, {}

    def reward(self, mean: float) -> float:
        """The reward for a mean of the table; noise is the subclass's."""
        return mean

    def legal_actions(self, state: int) -> list[int]:
        """The actions that `state` has; empty where the episode is over."""
        return sorted(self.P.get(state, {}))

    def render(self) -> str:
        rows, columns = self.shape or (1, int(self.observation_space.n))  # type: ignore[attr-defined]
        cells = ["x" if cell == self.s else "." for cell in range(rows * columns)]
        return "\n".join(" ".join(cells[row * columns : (row + 1) * columns]) for row in range(rows)) + "\n"

    def _draw(self, probabilities: list[float]) -> int:
        if len(probabilities) == 1:
            return 0
        return min(
            int(np.searchsorted(np.cumsum(probabilities), self.np_random.random(), side="right")),
            len(probabilities) - 1,
        )


def _grid(rows: int, columns: int, leave: dict[int, Outcome], ends: tuple[int, ...], reward: float, wall: float) -> Any:
    """The table of a grid; actions 0 left, 1 down, 2 right, 3 up, as in FrozenLake. A step off the grid stays."""
    table: dict[int, dict[int, list[Outcome]]] = {}
    for state in range(rows * columns):
        if state in ends:
            continue
        row, column = divmod(state, columns)
        table[state] = {}
        for action, (down, right) in enumerate(((0, -1), (1, 0), (0, 1), (-1, 0))):
            inside = 0 <= row + down < rows and 0 <= column + right < columns
            to = (row + down) * columns + column + right if inside else state
            table[state][action] = [leave.get(state, (1.0, to, reward if inside else wall, to in ends))]
    return table


class Gridworld4x4(TableWorld):
    """Example 4.1: -1 a step until one of two opposite corners. Starts anywhere else, all alike; γ = 1."""

    shape = (4, 4)
    P: ClassVar[dict[int, dict[int, list[Outcome]]]] = _grid(4, 4, {}, ends=(0, 15), reward=-1.0, wall=-1.0)
    start: ClassVar[dict[int, float]] = dict.fromkeys(range(1, 15), 1 / 14)


class Gridworld5x5(TableWorld):
    """Example 3.5: from A (0, 1) every action earns 10 and leads to (4, 1), from B (0, 3) 5 and to (2, 3); a step off the grid
    costs 1. It never ends: γ = 0.9."""

    shape = (5, 5)
    P: ClassVar[dict[int, dict[int, list[Outcome]]]] = _grid(
        5, 5, {1: (1.0, 21, 10.0, False), 3: (1.0, 13, 5.0, False)}, ends=(), reward=0.0, wall=-1.0
    )
    start: ClassVar[dict[int, float]] = dict.fromkeys(range(25), 1 / 25)


class RandomWalk(TableWorld):
    """Example 7.1: 19 states in a row, from the middle; the left end pays -1, the right end +1. Actions: left, right."""

    P: ClassVar[dict[int, dict[int, list[Outcome]]]] = {
        state: {
            0: [(1.0, state - 1, -1.0 if state == 1 else 0.0, state == 1)],
            1: [(1.0, state + 1, 1.0 if state == 19 else 0.0, state == 19)],
        }
        for state in range(1, 20)
    }
    start: ClassVar[dict[int, float]] = {10: 1.0}


class MaximizationBias(TableWorld):
    """Example 6.7: from A (0), right (0) ends with 0 and left (1) leads to B (1); each of B's ten actions ends with a reward
    drawn from N(-0.1, 1). Going left is a mistake, and the maximum over noisy values hides it."""

    P: ClassVar[dict[int, dict[int, list[Outcome]]]] = {
        0: {0: [(1.0, 2, 0.0, True)], 1: [(1.0, 1, 0.0, False)]},
        1: {action: [(1.0, 2, -0.1, True)] for action in range(10)},
    }
    start: ClassVar[dict[int, float]] = {0: 1.0}

    def reward(self, mean: float) -> float:
        return float(self.np_random.normal(mean, 1.0)) if mean else mean


class ShortCorridor(gym.Env[Any, Any]):
    """Example 13.1: three cells to the goal, -1 a step, and in the second one left and right are swapped. All look alike,
    so the best policy is stochastic: right with probability 2 - √2 ≈ 0.586, for a return of -11.657. Actions: left, right."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Discrete(1)
        self.action_space = spaces.Discrete(2)
        self.cell = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        right = (int(action) == 1) != (self.cell == 1)
        self.cell = self.cell + 1 if right else max(self.cell - 1, 0)
        return 0, -1.0, self.cell == 3, False, {}

    @staticmethod
    def value(right: float) -> float:
        """The exact value of the start for a probability of `right` in (0, 1): -(4 - 2p) / (p (1 - p))."""
        return -(4.0 - 2.0 * right) / (right * (1.0 - right))


WORLDS: dict[str, type[gym.Env[Any, Any]]] = {
    "Gridworld4x4": Gridworld4x4,
    "Gridworld5x5": Gridworld5x5,
    "RandomWalk": RandomWalk,
    "MaximizationBias": MaximizationBias,
    "ShortCorridor": ShortCorridor,
}


def register() -> None:
    """Make the worlds known to `gymnasium.make`, once."""
    for name, world in WORLDS.items():
        if f"reinlm/{name}-v0" not in gym.registry:
            gym.register(f"reinlm/{name}-v0", entry_point=f"{world.__module__}:{world.__name__}")
