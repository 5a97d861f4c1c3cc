"""How far the policy has moved: log-ratios per token, formed in the log domain in float32 or better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from reinlm.objectives.signals import Signals

if TYPE_CHECKING:
    from jaxtyping import Float

EXPONENT_LIMIT = 20.0
"""Differences of log-probabilities are clamped to ±20 before exp: e^20 ≈ 5e8, far outside any working range, and finite."""


class Ratio(Protocol):
    """(logprobs [N] with a gradient, signals) -> log-ratio [N], the only path of the gradient to the policy."""

    def __call__(self, logprobs: Float[Tensor, "tokens"], signals: Signals) -> Float[Tensor, "tokens"]: ...


def exponent(difference: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """A difference of log-probabilities made safe for exp: clamped to ±20, where its gradient becomes 0."""
    return difference.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)


def precise(x: Tensor) -> torch.dtype:
    """The dtype for logarithms of x: float32, or float64 where x has it."""
    return torch.promote_types(x.dtype, torch.float32)


def token_log_ratio(logprobs: Float[Tensor, "tokens"], signals: Signals) -> Float[Tensor, "tokens"]:
    """log π_θ - log π_old, every token for itself, in float32 or better."""
    current = logprobs.to(precise(logprobs))
    old = current.detach() if signals.old_logprobs is None else signals.old_logprobs
    return exponent(current - old)


@dataclass(frozen=True)
class TokenRatio:
    """r_t = π_θ(y_t) / π_old(y_t), every token for itself. PPO (arXiv 1707.06347), GRPO (arXiv 2402.03300)."""

    def __call__(self, logprobs: Float[Tensor, "tokens"], signals: Signals) -> Float[Tensor, "tokens"]:
        return token_log_ratio(logprobs, signals)


@dataclass(frozen=True)
class SequenceRatio:
    """s_i = exp( (1/L_i) Σ_t log π_θ/π_old ): one ratio a sequence, at each of its tokens. GSPO, arXiv 2507.18071 eq. 7.

    Under `sequence_mean` the gradient of ∓s·A reaches every token as s_i·A_i / L_i.
    """

    def __call__(self, logprobs: Float[Tensor, "tokens"], signals: Signals) -> Float[Tensor, "tokens"]:
        log_ratio = token_log_ratio(logprobs, signals)
        return signals.layout.expand(signals.layout.mean(log_ratio, "sequence"), "sequence")
