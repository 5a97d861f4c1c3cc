"""What algorithms with networks share: vectorised environments, observations as tensors, seeds, state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field
from torch import nn

from reinlm.classical.deep.networks import Flat
from reinlm.classical.deep.selection import Selection
from reinlm.classical.environments import check_finite, flatten, make, refuse
from reinlm.classical.sb3_names import Action
from reinlm.classical.snapshot import capture, restore
from reinlm.config import Config
from reinlm.errors import InputError, RunError
from reinlm.schedules import Schedule, scheduled


class NetworkSettings(Config):
    """What every network has."""

    verb: ClassVar[str] = "classical"

    discount: float = Field(0.99, ge=0, le=1)
    """γ."""
    environments: int = Field(1, ge=1)
    """Side by side, each with a seed of its own."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of the hidden layers; none: a linear function."""
    learning_rate: float = Field(3e-4, gt=0)
    """Of Adam, before the schedule."""
    schedule: Schedule = "constant"
    """How the learning rate goes to 0 over the budget."""
    max_grad_norm: float | None = Field(0.5, gt=0)
    """The norm of the gradient is clipped here; null: not clipped."""
    eval_freq: int | None = Field(None, ge=1)
    """Steps from one evaluation in training to the next, and one at the end: `predict` then acts with the weights that did
    best, the later ones of equals. null: none, and it acts with the last."""
    n_eval_episodes: int = Field(10, ge=1)
    """Greedy episodes of each, in an environment apart from those of training and of `evaluate`."""


class NetworkAgent(Selection):
    """An agent with networks: flat float observations, environments side by side that begin again as soon as an episode ends.

    Raises InputError for action spaces that it cannot act in.
    """

    continuous = True
    """Whether it acts in continuous spaces too."""
    activation: ClassVar[str] = "tanh"
    """Between the layers of its networks."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        env, count = self.env_like, self.settings.environments
        if isinstance(env, gym.Env) and count > 1:
            raise InputError(
                f"{count} environments cannot be made of one that is made already",
                hint="give its id or a function that makes one, or set environments=1",
            )
        self.env = gym.vector.SyncVectorEnv(
            [lambda: flatten(make(env, **self.env_arguments))] * count,
            copy=False,
            autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
        )
        self.count = count
        self.action_space = self.env.single_action_space
        self._check_actions()
        self._check_policy(given, settings)
        self.inputs = int(np.prod(self.env.single_observation_space.shape or ()))
        self.first_action = int(getattr(self.action_space, "start", 0))
        self.generator = torch.Generator().manual_seed(self.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.build()
        self.pristine = [capture(one) for one in self.env.envs]
        self.observation = self._read(self.env.reset(seed=self.seed)[0]).copy()
        """[environments, O] what the next action answers."""
        self.totals, self.lengths = np.zeros(count), np.zeros(count, dtype=np.int64)

    def build(self) -> None:
        """Make the networks and their optimizers."""
        raise NotImplementedError

    def modules(self) -> dict[str, nn.Module]:
        """The networks by name, for the saved state."""
        raise NotImplementedError

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The optimizers by name, for the saved state."""
        raise NotImplementedError

    def _check_policy(self, given: Sequence[Any], settings: Mapping[str, Any]) -> None:
        space = self.env.envs[0].unwrapped.observation_space
        named = "MultiInputPolicy" in (settings.get("policy"), *(word for word in given if isinstance(word, str)))
        if named and not isinstance(space, spaces.Dict | spaces.Tuple):
            raise InputError(
                f"MultiInputPolicy reads observations of several parts, and those of {self.env_name} are {space}",
                hint=f'write {type(self).__name__}("MlpPolicy", env)',
            )

    def _check_actions(self) -> None:
        space = self.action_space
        if isinstance(space, spaces.Discrete):
            return
        if isinstance(space, spaces.Box) and self.continuous:
            if not np.issubdtype(space.dtype, np.floating):
                raise refuse(self.name, self.env_name, "actions", space, "these are whole numbers", "wrap it")
            return
        if isinstance(space, spaces.Box):
            why, instead = "it compares the values of finitely many", "use ppo, ppo_penalty, trpo, a2c or reinforce"
        else:
            why, instead = "it knows one choice, or numbers", "wrap it so that its actions are a Discrete or a Box"
        raise refuse(self.name, self.env_name, "actions", space, why, instead)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[int, np.ndarray]]:
        """Act in all environments: (rewards, terminated, truncated, final observations of those that ended, by index).

        `observation` is then what each shows now: the first of a new episode where one ended.
        """
        observations, rewards, terminated, truncated, info = self.env.step(self._for_environment(actions))
        self.steps += self.count
        self.observation = observation = self._read(observations)
        if not (np.isfinite(rewards).all() and np.isfinite(observation).all()):
            for index in range(self.count):
                check_finite(self.env_name, self.steps, observation[index], float(rewards[index]))
        self.totals += rewards
        self.lengths += 1
        finals: dict[int, np.ndarray] = {}
        for index in np.flatnonzero(terminated | truncated).tolist():
            finals[index] = self._read(info["final_obs"][index])
            check_finite(self.env_name, self.steps, finals[index], 0.0)
            self.episodes.add(self.steps, float(self.totals[index]), int(self.lengths[index]))
            self.totals[index], self.lengths[index] = 0.0, 0
        return rewards, terminated, truncated & ~terminated, finals

    def _for_environment(self, actions: np.ndarray) -> Any:
        space = self.action_space
        if isinstance(space, spaces.Box):
            clipped = np.clip(actions, space.low.ravel(), space.high.ravel())
            return clipped.reshape(len(actions), *space.shape).astype(space.dtype)
        return [
            action + self.first_action for action in actions.tolist()
        ]  # plain numbers: Gymnasium checks them faster

    def answer(self, actions: np.ndarray, single: bool) -> Any:
        """What `predict` gives for a batch of actions, or for a single one."""
        found = self._for_environment(actions)
        if not single:
            return np.asarray(found)
        return Action(found[0]) if isinstance(found[0], int) else found[0]

    def _read(self, observations: Any) -> np.ndarray:
        return np.asarray(observations, dtype=np.float32)

    def learning_rate(self) -> float:
        """The rate that the schedule has now."""
        return float(self.settings.learning_rate * scheduled(self.settings.schedule, self.share))

    def update(self, flat: Flat, optimizer: torch.optim.Optimizer, loss: torch.Tensor, rate: float) -> torch.Tensor:
        """One step of an optimizer, at a rate."""
        for group in optimizer.param_groups:
            group["lr"] = rate
        return flat.step(loss, optimizer, self.settings.max_grad_norm)

    def check_weights(self, flat: Flat) -> None:
        """Raise RunError where an update made weights that are not finite."""
        if not math.isfinite(float(flat.vector.detach().sum())):  # one pass: NaN and infinity survive a sum
            raise RunError(
                f"{self.name}: the weights are not finite after {self.steps} steps", hint="lower learning_rate"
            )

    def batch(self, observation: Any) -> tuple[torch.Tensor, bool]:
        """A user's observation, or batch of them, as [batch, O], and whether it was a single one."""
        space = self.env.envs[0].unwrapped.observation_space
        try:
            if isinstance(space, spaces.Box) and isinstance(observation, list | tuple):
                observation = np.asarray(observation, dtype=space.dtype)
            shape = np.shape(observation)
            single = space.contains(observation) or shape == (space.shape or ())
            if space.shape and not single and len(shape) == len(space.shape) and isinstance(space, spaces.Box):
                found = np.zeros((1, int(np.prod(shape))), dtype=np.float32)  # one observation of another size
            else:
                rows = [observation] if single else list(observation)
                found = np.stack([np.asarray(spaces.flatten(space, row), dtype=np.float32) for row in rows])
        except (TypeError, ValueError, IndexError, KeyError, AttributeError):
            raise InputError(
                f"{observation!r:.60} is no observation of {self.env_name}, nor several of them",
                hint=f"its observations are {space}",
            ) from None
        if found.shape[1] != self.inputs:
            raise InputError(f"an observation of {self.env_name} has {self.inputs} numbers, not {found.shape[1]}")
        return torch.from_numpy(found), single

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "networks": {name: module.state_dict() for name, module in self.modules().items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers().items()},
            "generator": self.generator.get_state(),
            "observation": self.observation.copy(),
            "totals": self.totals.copy(),
            "lengths": self.lengths.copy(),
            "environments": [capture(one, known) for one, known in zip(self.env.envs, self.pristine, strict=True)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for name, module in self.modules().items():
            with torch.no_grad():
                module.load_state_dict(state["networks"][name])
        for name, optimizer in self.optimizers().items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.generator.set_state(state["generator"])
        if len(state["environments"]) != self.count:
            return  # other environments than those of the state: each begins an episode, as it does when it is made
        self.observation = state["observation"].copy()
        self.totals, self.lengths = state["totals"].copy(), state["lengths"].copy()
        for index, (one, snapshot) in enumerate(zip(self.env.envs, state["environments"], strict=True)):
            if not restore(one, snapshot, self.env_name):
                self.observation[index] = self._read(one.reset(seed=self.seed + self.steps + index)[0])
                self.totals[index], self.lengths[index] = 0.0, 0
