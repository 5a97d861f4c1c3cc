"""DQN: Q-learning with a network, a replay memory and a target network that is fixed between copies."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from reinlm.classical.deep.base import NetworkAgent, NetworkSettings
from reinlm.classical.deep.networks import MLP, Flat
from reinlm.classical.deep.replay import Replay, Transitions
from reinlm.classical.registry import named
from reinlm.objectives import n_step_returns, td_errors
from reinlm.runs import MetricSums
from reinlm.schedules import Schedule


class DQNSettings(NetworkSettings):
    """As in the Nature paper, with rates and sizes for small control tasks.

    The best evaluated weights are kept by default: see `reinlm.classical.deep.selection`.
    """

    hidden: tuple[int, ...] = (128, 128)
    learning_rate: float = Field(1e-3, gt=0)
    schedule: Schedule = "linear"
    max_grad_norm: float | None = Field(10.0, gt=0)
    capacity: int = Field(100_000, ge=1)
    """Transitions that the memory holds."""
    max_bytes: int = Field(4 * 2**30, ge=1)
    """Bytes that it may take."""
    batch_size: int = Field(64, ge=1)
    """Transitions in an update."""
    learning_starts: int = Field(1_000, ge=0)
    """Steps before the first update; until then every action is random."""
    train_every: int = Field(4, ge=1)
    """Steps of the environments from one round of updates to the next."""
    updates: int = Field(2, ge=1)
    """Updates in a round."""
    target_every: int = Field(250, ge=1)
    """Steps of the environments from one move of the target network to the next."""
    mix: float = Field(1.0, gt=0, le=1)
    """τ: target ← τ · online + (1 - τ) · target. 1 copies."""
    double: bool = True
    """The online network chooses the successor's action, and the target judges it."""
    huber: bool = True
    """The loss is linear beyond a TD error of 1; else squared."""
    n: int = Field(3, ge=1)
    """Steps before the bootstrap. More than one is off-policy without a correction, so keep it small; 3 as in Rainbow."""
    epsilon_start: float = Field(1.0, ge=0, le=1)
    """ε at the start: the share of random actions."""
    epsilon_end: float = Field(0.04, ge=0, le=1)
    """ε at the end."""
    epsilon_share: float = Field(0.16, gt=0, le=1)
    """The share of the budget over which ε goes down linearly."""
    eval_freq: int | None = Field(5_000, ge=1)

    @model_validator(mode="after")
    def _down(self) -> DQNSettings:
        if self.epsilon_end > self.epsilon_start:
            raise ValueError(f"epsilon_end {self.epsilon_end} is above epsilon_start {self.epsilon_start}")
        return self


@named(
    "dqn",
    family="value network",
    actions="discrete",
    equation="y = R + γ (1 - terminated) Q_target(S', argmax_a Q(S',a)),   loss = Huber(y - Q(S,A))",
    source="Mnih et al. (2015); double: van Hasselt et al. (2016), arXiv 1509.06461",
    use="finitely many actions, and steps that are dear: each is learned from many times",
)
class DQN(NetworkAgent):
    """y = R + γ (1 - terminated) max_a Q_target(S', a), or double: Q_target(S', argmax_a Q(S', a)); loss Huber(y - Q(S, A)).

    Transitions come from a memory that keeps the final observation of an episode that was cut off: truncation bootstraps.
    The target is a constant (semi-gradient). Mnih et al. (2015); double DQN, arXiv 1509.06461; n steps, arXiv 1710.02298.
    """

    Settings = DQNSettings
    continuous = False
    activation = "relu"

    def build(self) -> None:
        sizes = [self.inputs, *self.settings.hidden, int(self.action_space.n)]  # type: ignore[attr-defined]
        self.online, self.target = (MLP(sizes, relu=True) for _ in range(2))
        self.flat, self.frozen = Flat([self.online]), Flat([self.target])
        self.frozen.copy_from(self.flat.vector.detach())
        self.adam = torch.optim.Adam([self.flat.vector], lr=self.settings.learning_rate, fused=True)
        self.memory = Replay(self.settings.capacity, self.inputs, self.settings.max_bytes)
        self.windows: list[deque[tuple[np.ndarray, int, float]]] = [deque() for _ in range(self.count)]
        """Of each environment the last steps that still wait for their n-step return."""

    def modules(self) -> dict[str, nn.Module]:
        return {"online": self.online, "target": self.target}

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"online": self.adam}

    def policy_parts(self) -> dict[str, Any]:
        return {"online": self.online}

    @property
    def epsilon(self) -> float:
        """ε now."""
        settings = self.settings
        if self.steps < settings.learning_starts:
            return 1.0
        left = max(1.0 - self.share / settings.epsilon_share, 0.0)
        return float(settings.epsilon_end + (settings.epsilon_start - settings.epsilon_end) * left)

    @property
    def batch_steps(self) -> int:
        """A step of every environment."""
        return int(self.count)

    def improve(self, sums: MetricSums) -> None:
        """`train_every` steps with ε-greedy actions, or as many as the budget has, and a round of updates."""
        play, rate = self.online.player(), self.learning_rate()
        taken = 0
        while taken < self.settings.train_every and not self.finished():
            before = self.observation.copy()
            actions = np.where(
                self.rng.random(self.count) < self.epsilon,
                self.rng.integers(int(self.action_space.n), size=self.count),  # type: ignore[attr-defined]
                play(before).argmax(-1),
            )
            rewards, terminated, truncated, finals = self.step(actions)
            for index in range(self.count):
                self._remember(
                    index,
                    (before[index], int(actions[index]), float(rewards[index])),
                    finals.get(index, self.observation[index]),
                    bool(terminated[index]),
                    bool(truncated[index]),
                )
            taken += self.count
            if self.steps % self.settings.target_every < self.count:
                self.frozen.vector.data.lerp_(self.flat.vector.data, self.settings.mix)
        if self.steps >= self.settings.learning_starts and len(self.memory):
            self.learn_from_memory(sums, rate)

    def _remember(
        self,
        index: int,
        step: tuple[np.ndarray, int, float],
        successor: np.ndarray,
        terminated: bool,
        truncated: bool,
    ) -> None:
        """Add the transitions that this step completes: one, or at the end of an episode all that still wait."""
        n, discount, window = self.settings.n, self.settings.discount, self.windows[index]
        if n == 1:
            self.memory.add(*step, successor, terminated, discount)
            return
        window.append(step)
        if len(window) < n and not (terminated or truncated):
            return
        rewards = torch.tensor([reward for _, _, reward in window])
        nothing = torch.zeros(len(window))
        open_ends = torch.zeros(len(window), dtype=torch.bool)
        returns = n_step_returns(rewards, nothing, open_ends, open_ends, gamma=discount, n=n).tolist()
        while window and (len(window) == n or terminated or truncated):
            observation, action, _ = window.popleft()
            waited = len(window) + 1
            self.memory.add(observation, action, returns[-waited], successor, terminated, discount**waited)

    def learn_from_memory(self, sums: MetricSums, rate: float) -> None:
        """A round of updates at a learning rate."""
        settings = self.settings
        losses, values = [], []
        for _ in range(settings.updates):
            loss, q = self.loss(self.memory.sample(settings.batch_size, self.rng))
            self.update(self.flat, self.adam, loss, rate)
            losses.append(loss.detach())
            values.append(q)
        for name, figures in (("loss", losses), ("q", values)):
            sums.add(name, torch.stack(figures).sum(), len(figures))
        sums.add("learning_rate", rate, 1)
        sums.add("epsilon", self.epsilon, 1)
        self.check_weights(self.flat)

    def loss(self, batch: Transitions) -> tuple[Tensor, Tensor]:
        """The loss of a batch, and the mean value of its actions."""
        values = self.online(batch.observations).gather(1, batch.actions[:, None]).squeeze(1)
        with torch.no_grad():
            judged = self.target(batch.successors)
            if self.settings.double:
                chosen = self.online(batch.successors).argmax(1, keepdim=True)
                future = judged.gather(1, chosen).squeeze(1)
            else:
                future = judged.amax(1)
        discount = self.settings.discount if self.settings.n == 1 else batch.discounts
        errors = td_errors(batch.rewards, values, future, batch.terminated, gamma=discount)
        nothing = torch.zeros_like(errors)
        loss = F.smooth_l1_loss(errors, nothing) if self.settings.huber else F.mse_loss(errors, nothing)
        return loss, values.detach().mean()

    @torch.no_grad()
    def act(self, observation: Any, deterministic: bool) -> Any:
        """The action of the highest value; or, not `deterministic`, ε-greedy as ε is now."""
        batch, single = self.batch(observation)
        actions = self.acting()["online"](batch).argmax(-1).numpy()
        if not deterministic:
            random = self.rng.integers(int(self.action_space.n), size=len(actions))  # type: ignore[attr-defined]
            actions = np.where(self.rng.random(len(actions)) < self.epsilon, random, actions)
        return self.answer(actions, single)

    def state_dict(self) -> dict[str, Any]:
        windows = [list(window) for window in self.windows]
        return {
            **super().state_dict(),
            "memory": self.memory.state_dict(),
            "windows": windows,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.memory.load_state_dict(state["memory"])
        saved = state["windows"] if len(state["windows"]) == self.count else [()] * self.count
        self.windows = [deque(window if length else ()) for window, length in zip(saved, self.lengths, strict=True)]
