"""What algorithms with a table share: states as row numbers, exploration, one step, one episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pydantic import Field, model_validator

from reinlm.classical.agent import Agent
from reinlm.classical.environments import check_finite, make, refuse
from reinlm.classical.sb3_names import Action
from reinlm.classical.snapshot import capture, restore
from reinlm.classical.tabular.exploration import (
    epsilon_greedy,
    epsilon_greedy_probabilities,
    greedy,
    softmax_probabilities,
)
from reinlm.config import Config
from reinlm.errors import InputError
from reinlm.objectives import td_errors
from reinlm.runs import MetricSums
from reinlm.schedules import Schedule, scheduled

LARGEST = 10_000_000
"""Entries of a table; a larger space wants a network."""


class TableSettings(Config):
    """What every table has."""

    verb: ClassVar[str] = "classical"

    discount: float = Field(1.0, ge=0, le=1)
    """γ."""
    initial: float = 0.0
    """What unseen actions are thought to be worth; optimism explores."""


class ControlSettings(TableSettings):
    """How a table's values become actions."""

    epsilon: float | None = Field(None, ge=0, le=1)
    """ε-greedy; 0.1 where neither it nor a temperature is given."""
    temperature: float | None = Field(None, gt=0)
    """Softmax over Q / τ instead."""
    schedule: Schedule = "constant"
    """How ε, or τ, goes down to a hundredth of itself over the budget."""

    @model_validator(mode="after")
    def _one_of_them(self) -> ControlSettings:
        if self.epsilon is not None and self.temperature is not None:
            raise ValueError("epsilon and temperature are two ways to explore; give one of them")
        return self


class TableAgent(Agent):
    """An agent whose states are row numbers of a table.

    Raises InputError for observations or actions that are not finitely many.
    """

    settings: Any

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.env = make(self.env_like, **self.env_arguments)
        self.sizes = self._sizes()
        self.states = int(np.prod(self.sizes))
        action_space: Any = self.env.action_space
        self.actions, self.first_action = int(action_space.n), int(action_space.start)
        if self.states * self.actions > LARGEST:
            raise self._refuse(
                "observations", self.env.observation_space, f"a table of {self.states:,} states is too large"
            )
        legal = getattr(self.env.unwrapped, "legal_actions", None)
        everything = list(range(self.actions))
        self.legal = [list(legal(state)) or everything if legal else everything for state in range(self.states)]
        self.q = np.full((self.states, self.actions), self.settings.initial)
        for state, actions in enumerate(self.legal):
            if len(actions) < self.actions:
                self.q[state, [action for action in everything if action not in actions]] = -np.inf
        self.pristine = capture(self.env)
        self.env.reset(seed=self.seed)

    def _sizes(self) -> tuple[int, ...]:
        """How many values each part of an observation has."""
        observations, actions = self.env.observation_space, self.env.action_space
        if not isinstance(actions, spaces.Discrete):
            raise self._refuse("actions", actions, "a table has a column for each of finitely many actions")
        if isinstance(observations, spaces.Discrete):
            return (int(observations.n),)
        if isinstance(observations, spaces.MultiDiscrete) and not np.any(observations.start):
            return tuple(int(n) for n in observations.nvec.ravel())
        if isinstance(observations, spaces.Tuple) and all(
            isinstance(part, spaces.Discrete) and part.start == 0 for part in observations
        ):
            return tuple(int(part.n) for part in observations)
        raise self._refuse("observations", observations, "a table has a row for each of finitely many states")

    def _refuse(self, what: str, space: spaces.Space[Any], why: str) -> Exception:
        instead = "use ppo, a2c, trpo or reinforce" if what == "actions" else "use dqn, ppo, a2c, trpo or reinforce"
        return refuse(self.name, self.env_name, what, space, why, instead)

    def encode(self, observation: Any) -> int:
        """The row of an observation."""
        if len(self.sizes) == 1:
            return int(observation) - int(getattr(self.env.observation_space, "start", 0))
        row = 0
        for part, size in zip(
            np.ravel(observation) if isinstance(observation, np.ndarray) else observation, self.sizes, strict=True
        ):
            row = row * size + int(part)
        return row

    def row_of(self, observation: Any) -> int:
        """The row of a user's observation. Raises InputError for one that the environment does not have."""
        try:
            row = self.encode(observation)
        except (TypeError, ValueError):
            row = -1
        if not 0 <= row < self.states:
            raise InputError(
                f"{observation!r:.60} is no observation of {self.env_name}, whose observations are {self.env.observation_space}"
            )
        return row

    def reset(self) -> int:
        """Begin an episode; the row of its first state."""
        self.total, self.length = 0.0, 0
        return self.encode(self.env.reset()[0])

    def step(self, action: int) -> tuple[float, int, bool, bool]:
        """Take a column's action: (reward, row of the true successor, terminated, truncated). The budget's end truncates."""
        observation, reward, terminated, truncated, _ = self.env.step(action + self.first_action)
        reward = float(reward)
        self.steps += 1
        check_finite(self.env_name, self.steps, observation, reward)
        self.total += reward
        self.length += 1
        if terminated or truncated:
            self.episodes.add(self.steps, self.total, self.length)
        elif self.room() == 0:
            truncated = True
        return reward, self.encode(observation), bool(terminated), bool(truncated) and not terminated

    def values(self, row: int) -> list[float]:
        """What the actions of a row are thought to be worth."""
        found: list[float] = self.q[row].tolist()
        return found

    @property
    def exploration(self) -> float:
        """ε, or τ, as the schedule has it now."""
        base = self.settings.temperature or (0.1 if self.settings.epsilon is None else self.settings.epsilon)
        return float(base) * scheduled(self.settings.schedule, self.share, 0.01)

    def explore(self, row: int) -> int:
        """A column chosen as the exploration says."""
        if self.settings.temperature is None:
            return epsilon_greedy(self.values(row), self.legal[row], self.exploration, self.rng)
        return int(self.rng.choice(self.actions, p=self.probabilities(row)))

    def probabilities(self, row: int) -> list[float]:
        """The policy that `explore` draws from."""
        if self.settings.temperature is None:
            return epsilon_greedy_probabilities(self.values(row), self.legal[row], self.exploration)
        return softmax_probabilities(self.values(row), self.legal[row], self.exploration)

    def policy(self) -> list[int]:
        """The greedy column of every row, the first of equals."""
        return [greedy(self.values(row)) for row in range(self.states)]

    def act(self, observation: Any, deterministic: bool) -> int:
        """The greedy action, the first of equals; or one drawn as exploration has it now."""
        row = self.row_of(observation)
        return Action((greedy(self.values(row)) if deterministic else self.explore(row)) + self.first_action)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "q": self.q.copy(), "environment": capture(self.env, self.pristine)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if state["q"].shape != self.q.shape:
            raise ValueError(f"a table of shape {state['q'].shape} does not fit one of {self.q.shape}")
        self.q = state["q"].copy()
        restore(self.env, state["environment"], self.env_name)


class TDSettings(ControlSettings):
    """What one-step methods have."""

    step_size: float = Field(0.1, gt=0, le=1)
    """α."""


class TDControl(TableAgent):
    """One step at a time: Q(S,A) ← Q(S,A) + α [ R + γ · next_value(S') - Q(S,A) ].

    The value of S' is 0 where the episode terminated, and counts where it was cut off.
    """

    Settings = TDSettings

    def next_value(self, row: int) -> float:
        """What the successor is worth: what the algorithms differ in."""
        raise NotImplementedError

    def choose(self, row: int) -> int:
        """The next action."""
        return self.explore(row)

    def improve(self, sums: MetricSums) -> None:
        """One episode."""
        discount, step_size, q = self.settings.discount, self.settings.step_size, self.q
        row, over = self.reset(), False
        errors = 0.0
        while not over:
            action = self.choose(row)
            reward, following, terminated, truncated = self.step(action)
            future = 0.0 if terminated else self.next_value(following)
            error = td_errors(reward, float(q[row, action]), future, terminated, gamma=discount)
            q[row, action] += step_size * error
            errors += abs(error)
            row, over = following, terminated or truncated
        sums.add("td_error", errors, self.length)


def first_visits(keys: Sequence[Any]) -> list[bool]:
    """Whether each key has not stood earlier in the sequence."""
    seen: set[Any] = set()
    return [not (key in seen or seen.add(key)) for key in keys]  # type: ignore[func-returns-value]
