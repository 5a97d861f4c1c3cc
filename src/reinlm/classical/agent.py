"""What all classical algorithms share: `learn`, `predict`, `save`, `load`, and the counts of steps and episodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from reinlm.classical.budget import Budget, Episodes, whole
from reinlm.classical.environments import EnvLike, name_of
from reinlm.classical.listed import DATA, USED
from reinlm.classical.sb3 import environment_of, settings_of
from reinlm.classical.sb3_names import check_learn, check_load, check_predict, no_attribute
from reinlm.classical.stored import load, write_agent
from reinlm.config import Config, build
from reinlm.errors import InputError
from reinlm.importing import refuse_while_importing
from reinlm.runs import MetricSums, Progress

BLOCKS = 100
"""Lines of metrics in a run, or one for each update where these are fewer."""


class Agent(ABC):
    """An algorithm and the environment that it learns in.

        agent = PPO("CartPole-v1", seed=0).learn(100_000)
        action = agent.predict(observation)
        agent.save("cartpole"); agent = PPO.load("cartpole")

    Args:
        env: a Gymnasium id, `file.py:CLASS`, a class or function that makes an environment, or one environment, which is
            then the only one, with as many steps in a batch. A policy's name may stand before it: PPO("MlpPolicy", env).
        seed: of the environment, the exploration and the networks; at least 0. None draws one, which `agent.seed` is then.
        env_arguments: what the environment is made with besides its id.
        verbose: 1 and 2 print a line of metrics about a hundred times in `learn`; 0 nothing.
        settings: fields of the class's `Settings`, by these names or those of Stable-Baselines3; others are refused.

    Raises:
        InputError: for an environment that does not exist or that the algorithm cannot act in, and for bad settings.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[Config]]
    units: ClassVar[tuple[str, ...]] = ("steps", "episodes")
    """The budgets that `learn` takes."""

    def __init__(
        self,
        *env: Any,
        seed: int | None = 0,
        env_arguments: Mapping[str, Any] | None = None,
        verbose: int = 0,
        **settings: Any,
    ) -> None:
        self.seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1) if seed is None else whole("seed", seed)
        if self.seed < 0:
            raise InputError(f"seed must be at least 0, not {seed}")
        if verbose not in (0, 1, 2):
            raise InputError(f"verbose is 0, 1 or 2, not {verbose!r}")
        self.env_like = environment_of(type(self), env, settings)
        self.env_name = name_of(self.env_like)
        self.env_arguments = dict(env_arguments or {})
        self.settings: Any = build(type(self).Settings, settings_of(type(self), self.env_like, settings))
        self.verbose = verbose
        self.rng = np.random.default_rng(self.seed)
        self.steps = 0
        self.episodes = Episodes()
        self.budget: Budget | None = None

    def __repr__(self) -> str:
        changed = {name: value for name, value in self.settings if self.settings.changed(name)}
        words = [repr(self.env_name), f"seed={self.seed}", *(f"{name}={value!r}" for name, value in changed.items())]
        return f"<{type(self).__name__}({', '.join(words)}): {self.steps:,} steps, {self.episodes}>"

    def __dir__(self) -> list[str]:
        """What users call and read."""
        return sorted({*USED, *(name for name in vars(self) if name in DATA)})

    def learn(
        self,
        steps: float | None = None,
        *,
        episodes: float | None = None,
        total_timesteps: float | None = None,
        log: Callable[[dict[str, float]], Any] | None = None,
        progress_bar: bool = False,
        **others: Any,
    ) -> Self:
        """Learn for so many further steps of the environment, or episodes; never more steps than that.

        A second call goes on; schedules start again.

        Args:
            steps: of all environments together; `total_timesteps` is the same.
            episodes: or so many episodes.
            log: is called about a hundred times, or after every update where these are fewer, with the metrics since the last
                call; False ends learning.
            progress_bar: show a bar on standard error.
            others: what Stable-Baselines3 has and this has not; an error says what to write.

        Raises:
            InputError: for no budget, two of them, or one that the algorithm has no use for.
        """
        refuse_while_importing(f"{type(self).__name__}.learn")
        check_learn(log, others)
        if steps is not None and total_timesteps is not None:
            raise InputError("steps and total_timesteps are the same; give one of them")
        budget = self.begin(total_timesteps if steps is None else steps, episodes=episodes)
        progress = Progress(quiet=not progress_bar)
        with progress.run(f"{self.name} {self.env_name}", self.goal, budget.start):
            while not self.finished():
                metrics = self.advance(budget.next_line(self.done, BLOCKS))
                progress.update(self.done, metrics)
                if self.verbose:
                    print("  ".join(f"{name} {value:.6g}" for name, value in metrics.items()), flush=True)
                if log is not None and log(metrics) is False:
                    break
        return self

    def predict(self, observation: Any, deterministic: bool = True, **others: Any) -> Any:
        """The action for an observation, or an array of actions for a batch of them; drawn from the policy if not
        `deterministic`. `state` and `episode_start` of Stable-Baselines3 may be None.

        Raises:
            InputError: for what is no observation of the environment.
        """
        check_predict(observation, deterministic, others)
        return self.act(observation, bool(deterministic))

    @abstractmethod
    def act(self, observation: Any, deterministic: bool) -> Any:
        """What `predict` gives."""

    def save(self, path: str | Path) -> Path:
        """Write a folder from which `load` goes on exactly: settings as JSON, everything learned as safetensors."""
        return write_agent(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, env: EnvLike | None = None, **others: Any) -> Self:
        """The agent that `save` wrote; where it was not made by an id, `env` is needed to learn and to be evaluated in.

        Raises InputError for a folder that holds no agent, one of another algorithm, or one that does not fit `env`; and for
        arguments of Stable-Baselines3 (`others`), unless they say what happens anyway, as device="cpu" does.
        """
        check_load(others)
        agent = load(path, env)
        if not isinstance(agent, cls):
            raise InputError(f"{path} holds an agent of {agent.name!r}, not of {cls.name!r}")
        return agent

    # ------------------------------------------------------------------------------------------ what a run calls

    def begin(self, steps: float | None = None, *, episodes: float | None = None) -> Budget:
        """Set the budget. Raises InputError where there is none, or one that the algorithm has no use for."""
        given = {unit: amount for unit, amount in (("steps", steps), ("episodes", episodes)) if amount is not None}
        if len(given) != 1:
            raise InputError(
                f"{self.name} learns for a number of steps or of episodes: give one of them",
                hint="such as learn(100_000)",
            )
        ((unit, amount),) = given.items()
        amount = whole(unit, amount)
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

    @property
    def batch_steps(self) -> int:
        """The steps that `improve` makes are a multiple of this."""
        return 1

    @property
    def goal(self) -> int:
        """The steps or episodes at which the budget has no room for another `improve`."""
        room = self.room()
        if room is not None:
            return self.steps + room // self.batch_steps * self.batch_steps
        return self.budget.end if self.budget else self.done

    def finished(self) -> bool:
        """Whether the budget has no room for another `improve`."""
        return self.done >= self.goal

    def advance(self, until: int) -> dict[str, float]:
        """Improve until at least `until` steps or episodes are done, or the budget is; the metrics of that stretch.

        A batch or an episode is finished, so that `done` may pass `until`.
        """
        sums, before = MetricSums(), len(self.episodes)
        while self.done < until and not self.finished():
            steps = self.steps
            self.improve(sums)
            self.improved(steps, sums)
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

    def improved(self, before: int, sums: MetricSums) -> None:  # noqa: B027  most algorithms do nothing then
        """What follows every `improve`; `before` are the steps that had been made when it began."""

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


setattr(Agent, "__getattr__", no_attribute)  # noqa: B010  in the class it would tell a type checker that every name exists
