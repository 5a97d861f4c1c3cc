"""How much of the policy's movement may count: from ratio and advantage to a loss per token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from reinlm.objectives.signals import Signals

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@dataclass(frozen=True)
class Gated:
    """A loss per token, and where a lower or an upper bound stopped the gradient."""

    losses: Float[Tensor, "tokens"]
    low: Bool[Tensor, "tokens"]
    high: Bool[Tensor, "tokens"]


class Gate(Protocol):
    """(log-ratio [N], logprobs [N], signals) -> Gated."""

    def __call__(
        self, log_ratio: Float[Tensor, "tokens"], logprobs: Float[Tensor, "tokens"], signals: Signals
    ) -> Gated: ...


def clip_surrogate(
    ratio: Float[Tensor, "*shape"], advantages: Float[Tensor, "*shape"], low: float, high: float
) -> Float[Tensor, "*shape"]:
    """-min( r·A, clip(r, 1 - low, 1 + high)·A ). PPO, arXiv 1707.06347 eq. 7, as a loss.

    The gradient with respect to log π is -r·A, and 0 where A > 0 and r > 1 + high, or A < 0 and r < 1 - low.
    """
    return torch.maximum(-ratio * advantages, -ratio.clamp(1.0 - low, 1.0 + high) * advantages)


@dataclass(frozen=True)
class Clip:
    """PPO's clip with its two sides apart. DAPO's clip-higher (arXiv 2503.14476) is `Clip(0.2, 0.28)`."""

    low: float = 0.2
    """The ratio counts down to 1 - low; in (0, 1]."""
    high: float = 0.2
    """The ratio counts up to 1 + high; more than 0."""

    def __post_init__(self) -> None:
        if not 0.0 < self.low <= 1.0:
            raise ValueError(f"clip: low must be in (0, 1], for ratios down to 1 - low; given {self.low}")
        if not 0.0 < self.high < float("inf"):
            raise ValueError(f"clip: high must be more than 0 and finite, for ratios up to 1 + high; given {self.high}")

    def __call__(
        self, log_ratio: Float[Tensor, "tokens"], logprobs: Float[Tensor, "tokens"], signals: Signals
    ) -> Gated:
        ratio = log_ratio.exp()
        losses = clip_surrogate(ratio, signals.advantages, self.low, self.high)
        low = (signals.advantages < 0) & (ratio < 1.0 - self.low)
        high = (signals.advantages > 0) & (ratio > 1.0 + self.high)
        return Gated(losses, low.detach(), high.detach())
