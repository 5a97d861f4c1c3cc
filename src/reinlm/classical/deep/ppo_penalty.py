"""PPO with a penalty: a divergence from the old policy in place of the clip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from reinlm.classical.deep.networks import Distribution
from reinlm.classical.deep.on_policy import Batch, OnPolicy, OnPolicySettings
from reinlm.classical.registry import named
from reinlm.objectives import Measured, SchulmanRule, exponent, surrogate, value_loss, whiten
from reinlm.runs import MetricSums
from reinlm.schedules import Schedule


class PPOPenaltySettings(OnPolicySettings):
    learning_rate: float = Field(1e-3, gt=0)
    schedule: Schedule = "linear"
    rollout_steps: int = Field(64, ge=1)
    normalize_rewards: bool | None = True
    epochs: int = Field(10, ge=1)
    """Passes over a batch."""
    minibatch_size: int = Field(256, ge=1)
    """Steps in an update; the last of a pass may be smaller."""
    target_kl: float = Field(0.01, gt=0)
    """Nats: what the coefficient aims at in each batch."""
    coefficient: float = Field(1.0, gt=0)
    """β at the start; the rule finds the right one within a few batches."""
    value_coefficient: float = Field(0.5, ge=0)
    """Weight of the critic's loss."""
    entropy_coefficient: float = Field(0.0, ge=0)
    """Weight of the entropy bonus."""
    normalize_advantages: bool = True
    """Over the batch."""


@named(
    "ppo_penalty",
    family="policy network",
    actions="discrete, continuous",
    equation="J = mean[ r A - β KL(π_old ‖ π) ],   β ← β/2 where KL < target/1.5, 2β where KL > 1.5 target",
    source="Schulman et al. (2017) §4, arXiv 1707.06347",
    use="where the size of an update is to be set in nats",
)
class PPOPenalty(OnPolicy):
    """J = r A - β KL(π_old ‖ π_θ) - c_v ½ (V - R)² + c_H H, and β follows Schulman's rule after each batch.

    The divergence is exact at every state, not estimated from the actions taken. arXiv 1707.06347 §4.
    """

    Settings = PPOPenaltySettings

    def build(self) -> None:
        super().build()
        self.rule = SchulmanRule(target=self.settings.target_kl)
        self.coefficient = float(self.settings.coefficient)
        """β, in [1e-6, 1e6]: beyond that nothing is left of one term or of the other."""
        self.batches = 0

    def improve(self, sums: MetricSums) -> None:
        """Collect a batch, make `epochs` passes of updates over it, and move β."""
        rate = self.learning_rate()
        batch = self.prepare(self.collect())
        with torch.no_grad():
            old = self.actor(batch.observations).detach()
        total = len(batch.advantages)
        losses = []
        for _ in range(self.settings.epochs):
            for chosen in torch.randperm(total, generator=self.generator).split(self.settings.minibatch_size):
                loss, figures = self.loss(batch.take(chosen), old.at(chosen))
                losses.append(figures)
                self.update(self.flat, self.optimizer, loss, rate)
        with torch.no_grad():
            moved = self.actor(batch.observations)
            divergence = float(moved.kl_from(old).mean())
            entropy = moved.entropy().mean()
        policy_loss, critic_loss = torch.stack(losses).mean(0)
        figures_now = {"policy_loss": policy_loss, "value_loss": critic_loss, "entropy": entropy}
        self.measure(
            sums, batch, learning_rate=rate, kl__old=divergence, kl__old_coefficient=self.coefficient, **figures_now
        )
        self.batches += 1
        measured = Measured(divergence, divergence, total, self.batches)
        self.coefficient = min(max(self.rule(self.settings.coefficient, self.coefficient, measured), 1e-6), 1e6)

    def loss(self, batch: Batch, old: Distribution) -> tuple[Tensor, Tensor]:
        """The loss of a minibatch, and its parts: policy and critic."""
        settings = self.settings
        distribution = self.actor(batch.observations)
        advantages = whiten(batch.advantages, bessel=True) if settings.normalize_advantages else batch.advantages
        ratio = exponent(distribution.logprob(batch.actions) - batch.old_logprobs).exp()
        policy_loss = surrogate(ratio, advantages).mean()
        critic_loss = value_loss(self.critic(batch.observations), batch.returns).mean()
        loss = policy_loss + self.coefficient * distribution.kl_from(old).mean()
        loss = loss + settings.value_coefficient * critic_loss
        if settings.entropy_coefficient:
            loss = loss - settings.entropy_coefficient * distribution.entropy().mean()
        return loss, torch.stack([policy_loss.detach(), critic_loss.detach()])

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "coefficient": self.coefficient, "batches": self.batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.coefficient, self.batches = float(state["coefficient"]), int(state["batches"])
