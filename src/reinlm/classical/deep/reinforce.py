"""REINFORCE: the policy gradient itself, from whole episodes."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from reinlm.classical.budget import Budget
from reinlm.classical.deep.networks import Flat
from reinlm.classical.deep.on_policy import Batch, OnPolicy, OnPolicySettings, Rollout
from reinlm.classical.registry import named
from reinlm.objectives import surrogate, value_loss
from reinlm.runs import MetricSums


class REINFORCESettings(OnPolicySettings):
    environments: Literal[1] = 1
    """Whole episodes come one after another."""
    rollout_steps: Literal[1] = 1
    """Has no meaning here: an episode is a batch."""
    smoothing: Literal[1] = 1
    """The whole return, always."""
    learning_rate: float = Field(5e-3, gt=0)
    """Of the policy."""
    max_grad_norm: float | None = Field(None, gt=0)
    baseline: bool = True
    """Learn V(s) and subtract it."""
    baseline_rate: float = Field(1e-2, gt=0)
    """The learning rate of V."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Of policy and baseline; "sgd" is the textbook's."""


class Nothing(nn.Module):
    """A baseline of 0."""

    def forward(self, observations: Tensor) -> Tensor:
        return observations.new_zeros(observations.shape[:-1])


@named(
    "reinforce",
    family="policy network",
    actions="discrete, continuous",
    equation="θ ← θ + α Σ_t (G_t - b(S_t)) ∇ log π(A_t|S_t),   G_t = R_t + γ G_{t+1}",
    source="Williams (1992); Sutton & Barto (2018) §§13.3-13.4",
    use="short episodes, and learning what all policy gradients are made of",
)
class REINFORCE(OnPolicy):
    """θ ← θ + α Σ_t (G_t - b(S_t)) ∇ log π(A_t|S_t), once an episode, G_t the return from step t on (reward-to-go).

    The baseline does not depend on the action, so it changes the variance and not the mean. The γ^t before the gradient is
    left out, as everywhere in practice. An episode that was cut off goes on with V of its last observation; without a
    baseline it counts as ended. Williams (1992); Sutton & Barto (2018) §§13.3-13.4.
    """

    Settings = REINFORCESettings

    def build(self) -> None:
        super().build()
        if not self.settings.baseline:
            self.critic = Nothing()  # type: ignore[assignment]

    def build_optimizers(self) -> None:
        settings = self.settings
        self.flat, self.values = Flat([self.actor]), Flat([self.critic])
        if settings.optimizer == "sgd":
            self.optimizer = torch.optim.SGD([self.flat.vector], lr=settings.learning_rate)
            self.value_optimizer: torch.optim.Optimizer = torch.optim.SGD(
                [self.values.vector], lr=settings.baseline_rate
            )
        else:
            self.optimizer = torch.optim.Adam([self.flat.vector], lr=settings.learning_rate, fused=True)
            self.value_optimizer = torch.optim.Adam([self.values.vector], lr=settings.baseline_rate, fused=True)

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"policy": self.optimizer, "baseline": self.value_optimizer}

    def begin(self, steps: float | None = None, *, episodes: float | None = None) -> Budget:
        return super(OnPolicy, self).begin(steps, episodes=episodes)

    @property
    def batch_steps(self) -> int:
        """1: an episode has any number of steps, and the budget may cut it off."""
        return 1

    def improve(self, sums: MetricSums) -> None:
        """One episode, and one update."""
        rate = self.learning_rate()
        batch = self.prepare(self.episode())
        loss, entropy = self.loss(batch)
        norm = self.update(self.flat, self.optimizer, loss, rate)
        measured: dict[str, Tensor | float] = {"policy_loss": loss.detach(), "entropy": entropy, "grad_norm": norm}
        if self.settings.baseline:
            critic = value_loss(self.critic(batch.observations), batch.returns).sum()
            self.update(
                self.values,
                self.value_optimizer,
                critic,
                rate / self.settings.learning_rate * self.settings.baseline_rate,
            )
            measured["value_loss"] = critic.detach() / len(batch.returns)
        self.measure(sums, batch, learning_rate=rate, **measured)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """-Σ_t A_t log π(a_t|s_t), by the surrogate at ratio 1; and the mean entropy."""
        distribution = self.actor(batch.observations)
        ratio = (distribution.logprob(batch.actions) - batch.old_logprobs).exp()
        return surrogate(ratio, batch.advantages).sum(), distribution.entropy().mean().detach()

    @torch.no_grad()
    def episode(self) -> Rollout:
        """One whole episode, or what the budget has room for."""
        play = self.actor.player()
        seen, actions, rewards, ends = [], [], [], []
        cut: list[tuple[int, int, np.ndarray]] = []
        over = False
        while not over:
            if self.scale_observations is not None:
                self.scale_observations.update(self.observation)
            seen.append(self.see(self.observation).copy())
            actions.append(play(seen[-1], self.actor.noise((1,), self.generator).numpy()))
            reward, terminated, truncated, finals = self.step(actions[-1])
            if self.scale_rewards is not None:
                reward = self.scale_rewards(reward, terminated | truncated)
            rewards.append(reward.astype(np.float32))
            ends.append((bool(terminated[0]), bool(truncated[0])))
            cut += [(len(rewards) - 1, 0, final) for final in finals.values() if truncated[0]]
            over = bool(finals) or self.room() == 0
        seen.append(self.see(self.observation))
        terminations, truncations = np.array(ends, dtype=bool).T[:, :, None]
        return self._valued(np.stack(seen), np.stack(actions), np.stack(rewards), terminations, truncations, cut)
