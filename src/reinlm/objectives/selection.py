"""Separate treatment of the few tokens that cause most of the fall of entropy: those with a high covariance of
log-probability and advantage.

The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models, arXiv 2505.22617 eqs. 10 to 14. Selection is
over a whole optimizer step and without gradient, from the log-probabilities at the start of the update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reinlm.objectives.ratios import token_log_ratio
from reinlm.objectives.registry import choice
from reinlm.objectives.signals import Signals

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def covariance(logprobs: Float[Tensor, " tokens"], advantages: Float[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
    """(log π_t - mean log π) · (A_t - mean A): each token's part in the covariance of the two."""
    return (logprobs - logprobs.mean()) * (advantages - advantages.mean())


class Selection:
    """Chooses tokens of a step, and changes their loss."""

    def select(
        self, old_logprobs: Float[Tensor, " tokens"], advantages: Float[Tensor, " tokens"], seed: int
    ) -> Bool[Tensor, " tokens"]:
        raise NotImplementedError

    def apply(
        self, losses: Float[Tensor, " tokens"], logprobs: Float[Tensor, " tokens"], signals: Signals
    ) -> Float[Tensor, " tokens"]:
        raise NotImplementedError


def _check_fraction(name: str, fraction: float) -> None:
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"{name}: the fraction of tokens must be in (0, 1], not {fraction}")


def _quota(fraction: float, tokens: int) -> int:
    """At least one, so that the choice takes effect in small batches too."""
    return max(1, int(fraction * tokens))


@choice("selection", "clip_cov")
@dataclass(frozen=True)
class ClipCov(Selection):
    """Clip-Cov: some tokens, drawn among those with low < covariance < high, count 0. They stay in the denominators."""

    fraction: float = 2e-4
    """Share of the tokens that are selected, in (0, 1]."""
    low: float = 1.0
    """Covariance above which tokens may be selected."""
    high: float = 5.0
    """Covariance below which tokens may be selected."""

    def __post_init__(self) -> None:
        _check_fraction("clip_cov", self.fraction)
        if not self.low < self.high:
            raise ValueError(f"clip_cov: needs low < high, not {self.low} and {self.high}")

    def select(
        self, old_logprobs: Float[Tensor, " tokens"], advantages: Float[Tensor, " tokens"], seed: int
    ) -> Bool[Tensor, " tokens"]:
        chosen = torch.zeros_like(advantages, dtype=torch.bool)
        if not advantages.numel():
            return chosen
        shared = covariance(old_logprobs, advantages)
        candidates = torch.nonzero((shared > self.low) & (shared < self.high)).flatten()
        keys = _random_keys(old_logprobs[candidates], seed)
        drawn = candidates[keys.argsort(stable=True)[: _quota(self.fraction, advantages.numel())]]
        chosen[drawn] = True
        return chosen

    def apply(
        self, losses: Float[Tensor, " tokens"], logprobs: Float[Tensor, " tokens"], signals: Signals
    ) -> Float[Tensor, " tokens"]:
        assert signals.selected is not None
        return torch.where(signals.selected, 0.0, losses)


@choice("selection", "kl_cov")
@dataclass(frozen=True)
class KLCov(Selection):
    """KL-Cov: the tokens of the highest covariance get + coefficient · |log π_θ - log π_old|. The paper uses no clip with it.

    None is selected where no covariance is above 0. The penalty has no gradient at log π_θ = log π_old: before the first update
    of a batch the two differ by rounding at most, whose sign is no direction.
    """

    fraction: float = 2e-3
    """2e-3 for 7B, 2e-4 for 32B."""
    coefficient: float = 1.0
    """Weight of |log π_θ - log π_old|; more than 0."""

    def __post_init__(self) -> None:
        _check_fraction("kl_cov", self.fraction)
        if not 0.0 < self.coefficient < float("inf"):
            raise ValueError(f"kl_cov: the coefficient must be more than 0 and finite, not {self.coefficient}")

    def select(
        self, old_logprobs: Float[Tensor, " tokens"], advantages: Float[Tensor, " tokens"], seed: int
    ) -> Bool[Tensor, " tokens"]:
        chosen = torch.zeros_like(advantages, dtype=torch.bool)
        if not advantages.numel():
            return chosen
        shared = covariance(old_logprobs, advantages)
        quota = _quota(self.fraction, advantages.numel())
        last = shared.topk(quota).values[-1]
        # Of two tokens the covariances are equal but for rounding, which depends on the order: such ties are broken at random.
        rounding = 64.0 * torch.finfo(shared.dtype).eps * shared.abs().max()
        chosen = shared > last + rounding
        tied = torch.nonzero((shared - last).abs() <= rounding).flatten()
        drawn = tied[_random_keys(old_logprobs[tied], seed).argsort(stable=True)[: quota - int(chosen.sum())]]
        chosen[drawn] = True
        return chosen & (shared.max() > 0.0)

    def apply(
        self, losses: Float[Tensor, " tokens"], logprobs: Float[Tensor, " tokens"], signals: Signals
    ) -> Float[Tensor, " tokens"]:
        assert signals.selected is not None
        moved = token_log_ratio(logprobs, signals).abs()
        rounding = 64.0 * torch.finfo(moved.dtype).eps * logprobs.detach().abs().clamp(min=1.0)
        return losses + torch.where(signals.selected & (moved > rounding), self.coefficient * moved, 0.0)


def _random_keys(logprobs: Float[Tensor, " tokens"], seed: int) -> Float[Tensor, " tokens"]:
    """A draw of every token from its own log-probability and the seed, uniform in [0, 1).

    It does not depend on where the token stands, so neither order nor micro-batches move the selection.
    """
    bits = logprobs.detach().double().cpu().view(torch.int64)
    bits = (bits ^ (seed % 2**31 * 0x9E3779B1)) * 0x2545F4914F6CDD1D
    bits = (bits ^ ((bits >> 29) & 0x7FFFFFFFF)) * 0x5851F42D4C957F2D
    return (((bits >> 11) & (2**53 - 1)).double() / 2.0**53).to(logprobs.device)
