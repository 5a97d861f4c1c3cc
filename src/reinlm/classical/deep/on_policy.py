"""Collecting with the current policy, and what every policy gradient then needs: advantages, returns, old log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from reinlm.classical.budget import Budget, whole
from reinlm.classical.deep.base import NetworkAgent, NetworkSettings
from reinlm.classical.deep.networks import Actor, Critic, Distribution, Flat
from reinlm.classical.deep.normalise import Observations, Rewards
from reinlm.errors import InputError
from reinlm.objectives import explained_variance, gae
from reinlm.runs import MetricSums


class OnPolicySettings(NetworkSettings):
    """What policy gradients with a critic have."""

    environments: int = Field(8, ge=1)
    rollout_steps: int = Field(128, ge=1)
    """Steps of each environment between updates."""
    smoothing: float = Field(0.95, ge=0, le=1)
    """λ of GAE: 0 is one-step TD, 1 Monte Carlo with a baseline."""
    normalize_observations: bool | None = None
    """Running mean 0 and deviation 1, clipped to ±10; null: where actions are continuous."""
    normalize_rewards: bool | None = None
    """Divided by the running deviation of the discounted return, clipped to ±10; null: where actions are continuous."""


@dataclass(frozen=True)
class Rollout:
    """T steps of B environments.

    Example: CartPole, 8 environments, 32 steps: observations [32, 8, 4], the rest [32, 8].
    """

    observations: Tensor
    """[T, B, O]"""
    actions: Tensor
    """[T, B] or [T, B, D], before they are clipped for the environment."""
    rewards: Tensor
    values: Tensor
    next_values: Tensor
    """Of the true successor: of the final observation where an episode ended."""
    terminated: Tensor
    truncated: Tensor


@dataclass(frozen=True)
class Batch:
    """The same N = T·B steps side by side, with what the update holds constant."""

    observations: Tensor
    """[N, O]"""
    actions: Tensor
    """[N] or [N, D]"""
    advantages: Tensor
    """[N]"""
    returns: Tensor
    """[N] A + V: what the critic learns."""
    old_values: Tensor
    old_logprobs: Tensor

    def take(self, chosen: Tensor) -> Batch:
        """Some of the steps, in that order."""
        return Batch(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    def split(self, size: int) -> Iterator[Batch]:
        """So many steps at a time, the last of them fewer, without a copy."""
        return starmap(
            Batch, zip(*(getattr(self, name).split(size) for name in self.__dataclass_fields__), strict=True)
        )


class OnPolicy(NetworkAgent):
    """An actor, a critic, and batches of `rollout_steps` steps of each environment."""

    def build(self) -> None:
        hidden = self.settings.hidden
        self.actor = Actor(self.inputs, self.action_space, hidden)
        self.critic = Critic(self.inputs, hidden)
        continuous = not self.actor.discrete
        observations, rewards = self.settings.normalize_observations, self.settings.normalize_rewards
        self.scale_observations = self.scale_rewards = None
        if continuous if observations is None else observations:
            self.scale_observations = Observations((self.inputs,))
        if continuous if rewards is None else rewards:
            self.scale_rewards = Rewards(self.settings.environments, self.settings.discount)
        self.build_optimizers()

    def build_optimizers(self) -> None:
        """One Adam, ε = 1e-5, for both networks."""
        self.flat = Flat([self.actor, self.critic])
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            [self.flat.vector], lr=self.settings.learning_rate, eps=1e-5, fused=True
        )

    def modules(self) -> dict[str, nn.Module]:
        return {"actor": self.actor, "critic": self.critic}

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"both": self.optimizer}

    def policy_parts(self) -> dict[str, Any]:
        scale = self.scale_observations
        return {"actor": self.actor} if scale is None else {"actor": self.actor, "observations": scale}

    # ------------------------------------------------------------------------------------------ budget

    @property
    def batch_steps(self) -> int:
        """Steps of all environments between updates."""
        return int(self.settings.rollout_steps * self.count)

    def begin(self, steps: float | None = None, *, episodes: float | None = None) -> Budget:
        """Set the budget. Raises InputError for one that is smaller than a batch."""
        if steps is not None and whole("steps", steps) < self.batch_steps:
            raise InputError(
                f"{self.name} learns from {self.batch_steps} steps at a time ({self.count} environments, "
                f"{self.settings.rollout_steps} steps each), so {steps} steps teach it nothing",
                hint="give more steps, or lower rollout_steps or environments",
            )
        return super().begin(steps, episodes=episodes)

    # ------------------------------------------------------------------------------------------ collecting

    def see(self, observations: np.ndarray) -> np.ndarray:
        """Observations as the networks read them."""
        return observations if self.scale_observations is None else self.scale_observations(observations)

    @torch.no_grad()
    def collect(self) -> Rollout:
        """`rollout_steps` steps of every environment with the current policy."""
        steps, count = self.settings.rollout_steps, self.count
        seen = np.empty((steps + 1, count, self.inputs), dtype=np.float32)
        rewards = np.empty((steps, count), dtype=np.float32)
        terminated, truncated = np.zeros((steps, count), dtype=bool), np.zeros((steps, count), dtype=bool)
        noise, play = self.actor.noise((steps, count), self.generator).numpy(), self.actor.player()
        actions, cut = [], []
        for t in range(steps):
            if self.scale_observations is not None:
                self.scale_observations.update(self.observation)
            seen[t] = self.see(self.observation)
            actions.append(play(seen[t], noise[t]))
            reward, terminated[t], truncated[t], finals = self.step(actions[t])
            rewards[t] = (
                reward if self.scale_rewards is None else self.scale_rewards(reward, terminated[t] | truncated[t])
            )
            cut += [(t, index, final) for index, final in finals.items() if truncated[t, index]]
        seen[steps] = self.see(self.observation)
        return self._valued(seen, np.stack(actions), rewards, terminated, truncated, cut)

    def _valued(
        self,
        seen: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        cut: list[tuple[int, int, np.ndarray]],
    ) -> Rollout:
        """The steps with the critic's values; `cut` are (step, environment, final observation) of truncated episodes."""
        observations = torch.from_numpy(seen)
        values = self.critic(observations)
        next_values = values[1:].clone()
        if cut:  # what follows a truncated step is its final observation, not the first of the next episode
            times, places, finals = zip(*cut, strict=True)
            next_values[list(times), list(places)] = self.critic(torch.from_numpy(self.see(np.stack(finals))))
        return Rollout(
            observations[:-1],
            torch.from_numpy(actions),
            torch.from_numpy(rewards),
            values[:-1],
            next_values,
            torch.from_numpy(terminated),
            torch.from_numpy(truncated),
        )

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> Batch:
        """Advantages by GAE, returns, and the log-probabilities of the policy that acted."""
        advantages = gae(
            rollout.rewards,
            rollout.values,
            rollout.next_values,
            rollout.terminated,
            rollout.truncated,
            gamma=self.settings.discount,
            gae_lambda=self.settings.smoothing,
        )
        observations, actions = rollout.observations.flatten(0, 1), rollout.actions.flatten(0, 1)
        return Batch(
            observations,
            actions,
            advantages.flatten(),
            (advantages + rollout.values).flatten(),
            rollout.values.flatten(),
            self.actor(observations).logprob(actions),
        )

    def measure(self, sums: MetricSums, batch: Batch, **measured: Tensor | float) -> None:
        """Put an update's figures into the metrics; the explained variance is the critic's before the update."""
        explained = float(explained_variance(batch.old_values, batch.returns))
        if explained == explained:
            sums.add("explained_variance", explained, 1)
        for name, value in measured.items():
            sums.add(name.replace("__", "/"), value, 1)
        self.check_weights(self.flat)

    # ------------------------------------------------------------------------------------------ acting

    @torch.no_grad()
    def act(self, observation: Any, deterministic: bool) -> Any:
        batch, single = self.batch(observation)
        acting = self.acting()
        if "observations" in acting:
            batch = torch.from_numpy(acting["observations"](batch.numpy()))
        distribution: Distribution = acting["actor"](batch)
        noise = None if deterministic else self.actor.noise((len(batch),), self.generator)
        chosen = distribution.mode() if noise is None else distribution.sample(noise)
        return self.answer(chosen.numpy(), single)

    def _scales(self) -> dict[str, Any]:
        scales = {"observations": self.scale_observations, "rewards": self.scale_rewards}
        return {name: scale for name, scale in scales.items() if scale is not None}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "scales": {name: scale.state_dict() for name, scale in self._scales().items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for name, scale in self._scales().items():
            scale.load_state_dict(state["scales"][name])
