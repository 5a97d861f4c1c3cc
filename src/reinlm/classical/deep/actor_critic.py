"""Actor-critic: one update of each batch, from one step to n steps to GAE."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from reinlm.classical.deep.networks import Flat
from reinlm.classical.deep.on_policy import Batch, OnPolicy, OnPolicySettings
from reinlm.classical.registry import named
from reinlm.objectives import surrogate, value_loss, whiten
from reinlm.runs import MetricSums
from reinlm.schedules import Schedule


class ActorCriticSettings(OnPolicySettings):
    environments: int = Field(1, ge=1)
    rollout_steps: int = Field(1, ge=1)
    """n: with smoothing 1 the n-step return, fewer steps where an episode ends."""
    smoothing: float = Field(1.0, ge=0, le=1)
    learning_rate: float = Field(1e-3, gt=0)
    value_coefficient: float = Field(0.5, ge=0)
    """Weight of the critic's loss."""
    entropy_coefficient: float = Field(0.0, ge=0)
    """Weight of the entropy bonus."""
    normalize_advantages: bool = False
    """Over the batch."""


@named(
    "actor_critic",
    family="policy network",
    actions="discrete, continuous",
    equation="δ = R + γ V(S') - V(S);   θ ← θ + α δ ∇ log π(A|S),   w ← w + α δ ∇ V(S)",
    source="Barto, Sutton & Anderson (1983); Sutton & Barto (2018) §13.5",
    use="one step at a time; rollout_steps and smoothing make it n-step, or GAE",
)
class ActorCritic(OnPolicy):
    """-A log π(a|s) + c_v ½ (V - R)² - c_H H, one update a batch; A from GAE(λ) over `rollout_steps` steps.

    One step and λ whatever: A = R + γ V(S') - V(S). n steps and λ = 1: the n-step advantage. The γ^t before the gradient of
    the textbook is left out, as everywhere in practice. Sutton & Barto (2018) §13.5.
    """

    Settings = ActorCriticSettings

    def improve(self, sums: MetricSums) -> None:
        """Collect a batch, and make one update."""
        rate = self.learning_rate()
        batch = self.prepare(self.collect())
        loss, figures = self.loss(batch)
        norm = self.update(self.flat, self.optimizer, loss, rate)
        self.measure(sums, batch, learning_rate=rate, grad_norm=norm, **figures)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch, and its parts."""
        settings = self.settings
        distribution = self.actor(batch.observations)
        advantages = whiten(batch.advantages, bessel=True) if settings.normalize_advantages else batch.advantages
        ratio = (distribution.logprob(batch.actions) - batch.old_logprobs).exp()  # 1, with the gradient of log π
        policy_loss = surrogate(ratio, advantages).mean()
        critic_loss = value_loss(self.critic(batch.observations), batch.returns).mean()
        entropy = distribution.entropy().mean()
        loss = policy_loss + settings.value_coefficient * critic_loss - settings.entropy_coefficient * entropy
        parts = {"policy_loss": policy_loss, "value_loss": critic_loss, "entropy": entropy}
        return loss, {name: part.detach() for name, part in parts.items()}


class A2CSettings(ActorCriticSettings):
    """As in A3C's paper, side by side instead of asynchronous; rates for small control tasks.

    Rewards are scaled as PPO's are (OpenAI's baselines, RL Zoo: VecNormalize): with returns near 100 the critic's gradient
    fills the common gradient norm, and a policy that has become certain too early stays as it is.
    """

    environments: int = Field(8, ge=1)
    rollout_steps: int = Field(8, ge=1)
    learning_rate: float = Field(2e-3, gt=0)
    schedule: Schedule = "linear"
    normalize_rewards: bool | None = True
    normalize_advantages: bool = False


@named(
    "a2c",
    family="policy network",
    actions="discrete, continuous",
    equation="loss = -mean(A log π) + c_v mean(½ A²) - c_H mean(H),   A = n-step return - V",
    source="Mnih et al. (2016), arXiv 1602.01783",
    use="many cheap environments, each sample used once",
)
class A2C(ActorCritic):
    """Actor-critic on environments side by side, n-step returns, RMSprop with α = 0.99 and ε = 1e-5. arXiv 1602.01783.

    The mean of ½ A² is the value loss, since R - V is the advantage.
    """

    Settings = A2CSettings

    def build_optimizers(self) -> None:
        self.flat = Flat([self.actor, self.critic])
        self.optimizer = torch.optim.RMSprop([self.flat.vector], lr=self.settings.learning_rate, alpha=0.99, eps=1e-5)
