"""PPO with a clip."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from reinlm.classical.deep.on_policy import Batch, OnPolicy, OnPolicySettings
from reinlm.classical.registry import named
from reinlm.objectives import clip_surrogate, exponent, k3, surrogate, value_loss, whiten
from reinlm.runs import MetricSums
from reinlm.schedules import Schedule, scheduled


class PPOSettings(OnPolicySettings):
    """As in the paper's code, with rates and sizes for small control tasks."""

    learning_rate: float = Field(1e-3, gt=0)
    schedule: Schedule = "linear"
    rollout_steps: int = Field(64, ge=1)
    normalize_rewards: bool | None = True
    epochs: int = Field(10, ge=1)
    """Passes over a batch."""
    minibatch_size: int = Field(256, ge=1)
    """Steps in an update; the last of a pass may be smaller."""
    clip: float = Field(0.2, gt=0, lt=1)
    """ε: the ratio counts between 1 - ε and 1 + ε."""
    clip_schedule: Schedule = "constant"
    """How ε goes to 0 over the budget."""
    value_clip: float | None = Field(None, gt=0)
    """A value moves at most this far in one update before its gradient ends; null: no clip."""
    value_coefficient: float = Field(0.5, ge=0)
    """Weight of the critic's loss."""
    entropy_coefficient: float = Field(0.0, ge=0)
    """Weight of the entropy bonus."""
    normalize_advantages: bool = True
    """In each minibatch."""
    target_kl: float | None = Field(None, gt=0)
    """Nats: the batch's further updates are left out where one would begin more than 1.5 times this far from the old policy."""


@named(
    "ppo",
    family="policy network",
    actions="discrete, continuous",
    equation="J = mean[ min(r A, clip(r, 1-ε, 1+ε) A) ] - c_v ½ (V - R)² + c_H H",
    source="Schulman et al. (2017), arXiv 1707.06347",
    use="the default: several updates of each batch, kept near the policy that collected it",
)
class PPO(OnPolicy):
    """min( r A, clip(r, 1 - ε, 1 + ε) A ) - c_v ½ (V - R)² + c_H H,  r = π_θ(a|s) / π_old(a|s).  arXiv 1707.06347.

    The usual details ("The 37 implementation details of PPO", 2022), one by one:

     1. environments side by side, `rollout_steps` of each to a batch
     2. orthogonal weights: gain √2 in hidden layers, 0.01 for the policy's last, 1 for the critic's; biases 0
     3. Adam with ε = 1e-5
     4. a learning rate that goes to 0 linearly
     5. GAE; a truncated episode bootstraps from its final observation, which much other code takes for a termination
     6. minibatches: each pass in a new order, every step once
     7. advantages normalised in each minibatch (sample deviation)
     8. the clipped surrogate
     9. the value clip, off by default: `value_clip`
    10. one loss: policy + c_v · value - c_H · entropy
    11. the norm of the whole gradient clipped to 0.5
    12. metrics: clip fraction, approximate KL (k3), explained variance
    13. separate networks for policy and values
    14. (continuous) a log-deviation that does not depend on the state, independent dimensions, actions clipped for
        the environment alone, running normalisation of observations and rewards: `normalize_observations`, `normalize_rewards`
    """

    Settings = PPOSettings

    def improve(self, sums: MetricSums) -> None:
        """Collect a batch, and make `epochs` passes of updates over it."""
        rate = self.learning_rate()
        clip = self.settings.clip * scheduled(self.settings.clip_schedule, self.share)
        batch = self.prepare(self.collect())
        total, last = len(batch.advantages), self.settings.epochs - 1
        figures: list[Tensor] = []
        for epoch in range(self.settings.epochs):
            shuffled = batch.take(torch.randperm(total, generator=self.generator))
            for part in shuffled.split(self.settings.minibatch_size):
                loss, measured = self.loss(part, clip, measure=epoch == last or self.settings.target_kl is not None)
                if measured is not None:
                    figures.append(measured)
                if self._too_far(figures):
                    break
                self.update(self.flat, self.optimizer, loss, rate)
            if self._too_far(figures):
                break
        names = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_ratio__region_mean")
        means = torch.stack(figures).mean(0)
        self.measure(sums, batch, learning_rate=rate, **dict(zip(names, means, strict=True)))

    def loss(self, batch: Batch, clip: float, measure: bool = True) -> tuple[Tensor, Tensor | None]:
        """The loss of a minibatch, and its figures: of the last pass, or of all where they decide when to stop."""
        settings = self.settings
        distribution = self.actor(batch.observations)
        logprobs = distribution.logprob(batch.actions)
        advantages = whiten(batch.advantages, bessel=True) if settings.normalize_advantages else batch.advantages
        ratio = exponent(logprobs - batch.old_logprobs).exp()
        losses = clip_surrogate(ratio, advantages, clip, clip)
        policy_loss = losses.mean()
        critic_loss = value_loss(
            self.critic(batch.observations), batch.returns, batch.old_values, settings.value_clip
        ).mean()
        loss = policy_loss + settings.value_coefficient * critic_loss
        if settings.entropy_coefficient:
            loss = loss - settings.entropy_coefficient * distribution.entropy().mean()
        if not measure:
            return loss, None
        with torch.no_grad():
            clipped = (losses > surrogate(ratio, advantages)).float().mean()
            approx_kl = k3(batch.old_logprobs, logprobs).mean()
            return loss, torch.stack([policy_loss, critic_loss, distribution.entropy().mean(), approx_kl, clipped])

    def _too_far(self, figures: list[Tensor]) -> bool:
        target = self.settings.target_kl
        return target is not None and bool(figures) and float(figures[-1][3]) > 1.5 * target
