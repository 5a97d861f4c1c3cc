"""Ratios of the policy to an earlier snapshot, as log-ratios per token in float32 or better.

A ratio of probabilities of long answers underflows, and a ratio formed in bfloat16 has steps of 1/128; a difference of
logarithms has neither problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reinlm.objectives.registry import choice
from reinlm.objectives.signals import Signals

if TYPE_CHECKING:
    from jaxtyping import Float

EXPONENT_LIMIT = 20.0
"""Differences of log-probabilities are clamped to ±20 before exp: e^20 ≈ 5e8, far outside any working range, and finite."""


def exponent(difference: Float[Tensor, " *shape"]) -> Float[Tensor, " *shape"]:
    """A difference of log-probabilities made safe for exp: clamped to ±20, where its gradient becomes 0."""
    return difference.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)


def precise(x: Tensor) -> torch.dtype:
    """The dtype for logarithms of x: float32, or float64 where x has it."""
    return torch.promote_types(x.dtype, torch.float32)


def widest(device: torch.device) -> torch.dtype:
    """The widest floating-point dtype of a device: float64, float32 on MPS."""
    return torch.float32 if device.type == "mps" else torch.float64


def token_log_ratio(
    logprobs: Float[Tensor, " tokens"], signals: Signals, against: str = "old"
) -> Float[Tensor, " tokens"]:
    """log π_θ - log π_old (or π_rollout), every token for itself, in float32 or better.

    Without old log-probabilities they are the current ones. Raises ValueError where those of the sampler are missing.
    """
    current = logprobs.to(precise(logprobs))
    if against == "rollout":
        if signals.rollout_logprobs is None:
            raise ValueError("a ratio against the sampler needs rollout_logprobs, and there are none")
        known = (
            signals.rollout_logprobs.isfinite()
        )  # a token that the sampler could not score has ratio 1, and no gradient
        drew = torch.where(known, signals.rollout_logprobs, current.detach())
        return exponent(torch.where(known, current, current.detach()) - drew)
    old = current.detach() if signals.old_logprobs is None else signals.old_logprobs
    return exponent(current - old)


@dataclass(frozen=True)
class Ratio:
    """(logprobs [N] with a gradient, signals) -> log-ratio [N], the only path of the gradient to the policy."""

    against: str = "old"
    """The snapshot below the fraction: "old", the weights at the start of the update, or "rollout", the sampler."""

    def __post_init__(self) -> None:
        if self.against not in {"old", "rollout"}:
            raise ValueError(f"ratio: against is old or rollout, not {self.against!r}")

    def __call__(self, logprobs: Float[Tensor, " tokens"], signals: Signals) -> Float[Tensor, " tokens"]:
        raise NotImplementedError


@choice("ratio", "token")
@dataclass(frozen=True)
class TokenRatio(Ratio):
    """r_t = π_θ(y_t) / π_old(y_t), every token for itself. PPO (arXiv 1707.06347), GRPO (arXiv 2402.03300)."""

    def __call__(self, logprobs: Float[Tensor, " tokens"], signals: Signals) -> Float[Tensor, " tokens"]:
        return token_log_ratio(logprobs, signals, self.against)


@dataclass(frozen=True)
class PooledRatio(Ratio):
    """One value for several tokens."""

    allow_token_mean: bool = False
    """A token mean counts a pooled ratio once for each of its tokens, so that long answers weigh more: only where it is
    asked for."""


@choice("ratio", "turn")
@dataclass(frozen=True)
class TurnRatio(PooledRatio):
    """exp of the mean log-ratio of each turn: one ratio for each unbroken stretch of chosen tokens."""

    def __call__(self, logprobs: Float[Tensor, " tokens"], signals: Signals) -> Float[Tensor, " tokens"]:
        log_ratio = token_log_ratio(logprobs, signals, self.against)
        return signals.layout.expand(signals.layout.mean(log_ratio, "turn"), "turn")


@choice("ratio", "sequence")
@dataclass(frozen=True)
class SequenceRatio(PooledRatio):
    """s_i = exp( (1/L_i) Σ_t log π_θ/π_old ): one ratio a sequence, at each of its tokens. GSPO, arXiv 2507.18071 eq. 7.

    Under `sequence_mean` the gradient of ∓s·A reaches every token as s_i·A_i / L_i.
    """

    def __call__(self, logprobs: Float[Tensor, " tokens"], signals: Signals) -> Float[Tensor, " tokens"]:
        log_ratio = token_log_ratio(logprobs, signals, self.against)
        return signals.layout.expand(signals.layout.mean(log_ratio, "sequence"), "sequence")


@choice("ratio", "sequence_product")
@dataclass(frozen=True)
class SequenceProductRatio(PooledRatio):
    """ρ_i = exp( Σ_t log π_θ/π_old ): the ratio of whole answers, at each of their tokens.

    The exact importance weight of a sequence. The deviation of its logarithm grows as the root of the length, where that of
    `SequenceRatio` falls as its inverse, and so does the share of sequences that a clip stops. The sum is clamped to ±20.
    """

    def __call__(self, logprobs: Float[Tensor, " tokens"], signals: Signals) -> Float[Tensor, " tokens"]:
        log_ratio = token_log_ratio(logprobs, signals, self.against)
        return signals.layout.expand(exponent(signals.layout.sum(log_ratio, "sequence")), "sequence")


@choice("ratio", "sequence_token")
@dataclass(frozen=True)
class SequenceTokenRatio(PooledRatio):
    """s_{i,t} = sg[s_i] · π_θ(y_t) / sg[π_θ(y_t)]: the sequence's value, each token's own gradient. GSPO-token, eq. 14.

    Equal to `SequenceRatio` in value and gradient where the advantage is the same at all tokens of a sequence; where it is
    not, every token follows its own.
    """

    def __call__(self, logprobs: Float[Tensor, " tokens"], signals: Signals) -> Float[Tensor, " tokens"]:
        log_ratio = token_log_ratio(logprobs, signals, self.against).detach()
        current = logprobs.to(precise(logprobs))
        return (
            current - current.detach() + signals.layout.expand(signals.layout.mean(log_ratio, "sequence"), "sequence")
        )
