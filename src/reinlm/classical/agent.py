"""What all classical algorithms share: `learn`, `predict`, `save`, `load`, and the counts of steps and episodes."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from reinlm.classical.budget import Budget, Episodes
from reinlm.classical.environments import EnvLike, name_of
from reinlm.classical.registry import find
from reinlm.config import Config, build
from reinlm.errors import InputError
from reinlm.runs import MetricSums
from reinlm.runs.files import write_json
from reinlm.runs.state import read_state, write_state

AGENT_FILE = "agent.json"
STATE = "agent_state"
BLOCKS = 100
"""Lines of metrics in a run."""


GREEK = {
    "alpha": ("step_size", "learning_rate"),
    "gamma": ("discount",),
    "lam": ("smoothing",),
    "lambda": ("smoothing",),
}
"""Symbols of textbooks for a setting, and the names that it may have here."""


def _spelled(kind: type[Config], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under our names. Raises InputError for one that is given under both."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        ours = next((known for known in GREEK.get(name, ()) if known in kind.model_fields), name)
        if ours in found or (ours != name and ours in settings):
            raise InputError(f"{name} and {ours} are the same setting; give one of them")
        found[ours] = value
    return found


class Agent(ABC):
    """An algorithm and the environment that it learns in.

        agent = PPO("CartPole-v1", seed=0).learn(100_000)
        action = agent.predict(observation)
        agent.save("cartpole"); agent = PPO.load("cartpole")

    Args:
        env: a Gymnasium id, a function that makes an environment, or one environment.
        seed: of the environment, the exploration and the networks.
        env_arguments: what `gymnasium.make` is given besides the id.
        settings: fields of the class's `Settings`; what is not among them is refused.

    Raises:
        InputError: for an environment that does not exist or that the algorithm cannot act in, and for bad settings.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[Config]]
    units: ClassVar[tuple[str, ...]] = ("steps", "episodes")
    """The budgets that `learn` takes."""

    def __init__(
        self, env: EnvLike, *, seed: int = 0, env_arguments: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        if seed < 0:
            raise InputError(f"seed must be at least 0, not {seed}")
        self.env_name = name_of(env)
        self.env_like = env
        self.env_arguments = dict(env_arguments or {})
        self.settings: Any = build(type(self).Settings, _spelled(type(self).Settings, settings))
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.steps = 0
        self.episodes = Episodes()
        self.budget: Budget | None = None

    # ------------------------------------------------------------------------------------------ what users call

    def learn(
        self,
        steps: int | None = None,
        *,
        episodes: int | None = None,
        log: Callable[[dict[str, float]], None] | None = None,
    ) -> Self:
        """Learn for so many further steps of the environment, or episodes; never more steps than that.

        `log` is called about a hundred times with the metrics since the last call. A second call goes on; schedules start anew.
        """
        budget = self.begin(steps, episodes=episodes)
        stride = max((budget.end - budget.start) // BLOCKS, 1)
        until = budget.start
        while not self.finished():
            until = min(until + stride, budget.end)
            metrics = self.advance(until)
            if log is not None and metrics:
                log(metrics)
        return self

    @abstractmethod
    def predict(self, observation: Any, deterministic: bool = True) -> Any:
        """The action for an observation, or an array of actions for a batch of them; drawn from the policy if not
        `deterministic`."""

    def save(self, path: str | Path) -> Path:
        """Write a folder from which `load` goes on exactly: settings as JSON, everything learned as safetensors."""
        folder = Path(path)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file, not a folder")
        folder.mkdir(parents=True, exist_ok=True)
        described = {
            "algorithm": self.name,
            "env": self.env_like if isinstance(self.env_like, str) else None,
            "env_arguments": self.env_arguments,
            "seed": self.seed,
            "settings": self.settings.model_dump(mode="json"),
        }
        write_json(folder / AGENT_FILE, described)
        write_state(folder, self.state_dict(), STATE)
        return folder

    @classmethod
    def load(cls, path: str | Path, env: EnvLike | None = None) -> Self:
        """The agent that `save` wrote; `env` is needed where it was made from a function or an environment.

        Raises InputError for a folder that holds no agent, or one of another algorithm.
        """
        agent = load(path, env)
        if not isinstance(agent, cls):
            raise InputError(f"{path} holds an agent of {agent.name!r}, not of {cls.name!r}")
        return agent

    # ------------------------------------------------------------------------------------------ what a run calls

    def begin(self, steps: int | None = None, *, episodes: int | None = None) -> Budget:
        """Set the budget. Raises InputError where there is none, or one that the algorithm has no use for."""
        given = {unit: amount for unit, amount in (("steps", steps), ("episodes", episodes)) if amount is not None}
        if len(given) != 1:
            raise InputError(f"{self.name} learns for a number of steps or of episodes: give one of them")
        ((unit, amount),) = given.items()
        if unit not in self.units:
            raise InputError(f"{self.name} takes its budget in {' or '.join(self.units)}, not in {unit}")
        if amount < 1:
            raise InputError(f"{unit} must be at least 1, not {amount}")
        now = self.steps if unit == "steps" else len(self.episodes)
        self.budget = Budget(unit, now, now + amount)
        return self.budget

    @property
    def done(self) -> int:
        """Steps or episodes, whichever the budget counts."""
        return self.steps if self.budget is None or self.budget.unit == "steps" else len(self.episodes)

    @property
    def share(self) -> float:
        """How much of the budget is over, in [0, 1]: the clock of schedules."""
        return self.budget.share(self.done) if self.budget else 0.0

    def room(self) -> int | None:
        """Steps that the budget still allows; None where it counts episodes."""
        return self.budget.end - self.steps if self.budget and self.budget.unit == "steps" else None

    def finished(self) -> bool:
        """Whether the budget has no room for another `improve`."""
        return self.budget is None or self.done >= self.budget.end

    def advance(self, until: int) -> dict[str, float]:
        """Improve until `until` steps or episodes are done, or the budget is; the metrics of that stretch."""
        sums, before = MetricSums(), len(self.episodes)
        while self.done < until and not self.finished():
            self.improve(sums)
        metrics = {"env_steps": float(self.steps), "episodes": float(len(self.episodes)), **sums.means()}
        ended = self.episodes.returns[before:]
        if ended:
            metrics |= {
                "return": float(np.mean(ended)),
                "return/min": min(ended),
                "return/max": max(ended),
                "episode_length": float(np.mean(self.episodes.lengths[before:])),
            }
        return metrics

    @abstractmethod
    def improve(self, sums: MetricSums) -> None:
        """The least that the algorithm can learn from: an episode, a batch, a step. What it measured goes into `sums`."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that learning goes on from."""
        return {
            "steps": self.steps,
            "episodes": self.episodes.state_dict(),
            "budget": None if self.budget is None else [self.budget.unit, self.budget.start, self.budget.end],
            "rng": self.rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = int(state["steps"])
        self.episodes.load_state_dict(state["episodes"])
        self.budget = None if state["budget"] is None else Budget(*state["budget"])
        self.rng.bit_generator.state = state["rng"]


def load(path: str | Path, env: EnvLike | None = None) -> Agent:
    """The agent in a folder that `Agent.save` wrote, or in a checkpoint of a run, whatever its algorithm."""
    folder = Path(path)
    try:
        described = json.loads((folder / AGENT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError(f"{folder} holds no agent", hint=f"an agent is a folder with {AGENT_FILE}") from None
    if env is None and described["env"] is None:
        raise InputError(f"the agent in {folder} was made with an environment, not with the id of one: give env")
    arguments = described["env_arguments"] if env is None else {}
    agent = find(described["algorithm"])(
        env or described["env"], seed=described["seed"], env_arguments=arguments, **described["settings"]
    )
    agent.load_state_dict(read_state(folder, STATE))
    return agent
