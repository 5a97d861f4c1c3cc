"""TRPO: the largest step that keeps the policy within a divergence, and no step where none improves."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from reinlm.classical.deep.networks import Flat
from reinlm.classical.deep.on_policy import Batch, OnPolicy, OnPolicySettings
from reinlm.classical.registry import named
from reinlm.objectives import conjugate_gradient, exponent, full_step, line_search, surrogate, value_loss, whiten
from reinlm.runs import MetricSums


class TRPOSettings(OnPolicySettings):
    learning_rate: float = Field(1e-3, gt=0)
    """The critic's; the policy has none."""
    environments: int = Field(4, ge=1)
    rollout_steps: int = Field(256, ge=1)
    divergence: float = Field(0.01, gt=0)
    """δ, in nats: the mean KL(π_old ‖ π) that a step may reach."""
    cg_iterations: int = Field(10, ge=1)
    """Steps of the conjugate gradient."""
    damping: float = Field(0.1, ge=0)
    """Added to the Fisher matrix's diagonal."""
    backtracks: int = Field(10, ge=1)
    """Steps of the line search at most."""
    shrink: float = Field(0.8, gt=0, lt=1)
    """The step is multiplied by it at each step of the line search."""
    critic_epochs: int = Field(10, ge=1)
    """Passes of the critic over a batch."""
    minibatch_size: int = Field(128, ge=1)
    """Of the critic's updates."""
    normalize_advantages: bool = True
    """Over the batch."""


@named(
    "trpo",
    family="policy network",
    actions="discrete, continuous",
    equation="max_θ mean[ r A ]  subject to  mean KL(π_old ‖ π_θ) ≤ δ",
    source="Schulman et al. (2015), arXiv 1502.05477",
    use="steps measured in nats, each one checked; no learning rate for the policy",
)
class TRPO(OnPolicy):
    """max mean[ r A ] subject to mean KL(π_old ‖ π_θ) ≤ δ.  arXiv 1502.05477.

    x ≈ F⁻¹ g by conjugate gradient, F the Hessian of the divergence plus damping; the step √(2δ / xᵀFx) x is shortened
    until the measured divergence is within δ and the surrogate truly better. Where none of its lengths is, the
    policy's weights are put back, bit for bit. The critic is trained apart, by Adam.
    """

    Settings = TRPOSettings

    def build_optimizers(self) -> None:
        self.policy, self.flat = Flat([self.actor]), Flat([self.critic])
        self.optimizer = torch.optim.Adam([self.flat.vector], lr=self.settings.learning_rate, eps=1e-5, fused=True)

    def improve(self, sums: MetricSums) -> None:
        """Collect a batch, take one step of the policy, and train the critic."""
        rate = self.learning_rate()
        batch = self.prepare(self.collect())
        if self.settings.normalize_advantages:
            batch = Batch(**{**vars(batch), "advantages": whiten(batch.advantages, bessel=True)})
        measured = self.policy_step(batch)
        critic = self.critic_steps(batch, rate)
        with torch.no_grad():
            entropy = self.actor(batch.observations).entropy().mean()
        self.measure(sums, batch, learning_rate=rate, value_loss=critic, entropy=entropy, **measured)
        self.check_weights(self.policy)

    def policy_step(self, batch: Batch) -> dict[str, float]:
        """Move the policy, or leave it: `accepted`, the divergence and the improvement of the surrogate."""
        settings, parameters = self.settings, self.policy.parameters
        before = self.policy.vector.detach().clone()
        with torch.no_grad():
            old = self.actor(batch.observations).detach()
        gradient = _vector(torch.autograd.grad(-self.surrogate(batch), parameters))
        slope = _vector(
            torch.autograd.grad(self.actor(batch.observations).kl_from(old).mean(), parameters, create_graph=True)
        )

        def fisher(vector: Tensor) -> Tensor:
            product = torch.autograd.grad((slope * vector).sum(), parameters, retain_graph=True)
            return _vector(product) + settings.damping * vector

        direction = conjugate_gradient(fisher, gradient, settings.cg_iterations)
        step = full_step(direction, fisher(direction), settings.divergence)
        start = float(self.surrogate(batch).detach())

        found = (0.0, 0.0)

        @torch.no_grad()
        def attempt(change: Tensor) -> tuple[float, float]:
            nonlocal found
            self.policy.copy_from(before + change)
            divergence = float(self.actor(batch.observations).kl_from(old).mean())
            found = start - float(self.surrogate(batch)), divergence
            return found

        taken = line_search(attempt, step, settings.divergence, settings.backtracks, settings.shrink)
        if taken is None:
            self.policy.copy_from(before)
            found = (0.0, 0.0)
        return {
            "trust_region__accepted": float(taken is not None),
            "kl__old": found[1],
            "surrogate_improvement": found[0],
        }

    def surrogate(self, batch: Batch) -> Tensor:
        """-mean[ r A ]."""
        logprobs = self.actor(batch.observations).logprob(batch.actions)
        return surrogate(exponent(logprobs - batch.old_logprobs).exp(), batch.advantages).mean()

    def critic_steps(self, batch: Batch, rate: float) -> Tensor:
        """Passes of the critic over the batch; its mean loss."""
        losses = []
        for _ in range(self.settings.critic_epochs):
            order = torch.randperm(len(batch.returns), generator=self.generator)
            for chosen in order.split(self.settings.minibatch_size):
                loss = value_loss(self.critic(batch.observations[chosen]), batch.returns[chosen]).mean()
                losses.append(loss.detach())
                self.update(self.flat, self.optimizer, loss, rate)
        return torch.stack(losses).mean()


def _vector(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])
