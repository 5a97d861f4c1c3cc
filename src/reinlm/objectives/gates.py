"""Gates: the per-token policy loss as a function of ratio and advantage (clip, soft gate, truncated weight, …)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor

from reinlm.objectives.registry import choice
from reinlm.objectives.signals import Signals

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


@dataclass(frozen=True)
class Gated:
    """A loss per token, and where the ratio was beyond a lower or an upper bound that stopped it."""

    losses: Float[Tensor, " tokens"]
    low: Bool[Tensor, " tokens"]
    high: Bool[Tensor, " tokens"]
    known: bool = True
    """False: where it was stopped is not known, `low` and `high` say nothing, and no `clip_ratio` is logged."""


class Gate(Protocol):
    """(log-ratio [N], logprobs [N], signals) -> Gated."""

    def __call__(
        self, log_ratio: Float[Tensor, " tokens"], logprobs: Float[Tensor, " tokens"], signals: Signals
    ) -> Gated: ...


def surrogate(ratio: Float[Tensor, " *shape"], advantages: Float[Tensor, " *shape"]) -> Float[Tensor, " *shape"]:
    """-r·A: the plain policy gradient, as a loss. TRPO, arXiv 1502.05477 eq. 14.

    At r = 1 its gradient is that of -A · log π: REINFORCE (Williams 1992) and actor-critics.
    """
    return -ratio * advantages


def clip_surrogate(
    ratio: Float[Tensor, " *shape"], advantages: Float[Tensor, " *shape"], low: float, high: float
) -> Float[Tensor, " *shape"]:
    """-min( r·A, clip(r, 1 - low, 1 + high)·A ). PPO, arXiv 1707.06347 eq. 7, as a loss.

    The gradient with respect to log π is -r·A, and 0 where A > 0 and r > 1 + high, or A < 0 and r < 1 - low.
    """
    return torch.maximum(-ratio * advantages, -ratio.clamp(1.0 - low, 1.0 + high) * advantages)


def soft_gate(ratio: Float[Tensor, " *shape"], temperature: Float[Tensor, " *shape"]) -> Float[Tensor, " *shape"]:
    """f_τ(r) = (4/τ) σ(τ (r - 1)), whose slope is sech²(τ (r - 1) / 2): 1 at r = 1. SAPO, arXiv 2511.20347."""
    return 4.0 / temperature * torch.sigmoid(temperature * (ratio - 1.0))


def _nowhere(x: Tensor) -> Bool[Tensor, " tokens"]:
    return torch.zeros_like(x, dtype=torch.bool)


@choice("gate", "none")
@dataclass(frozen=True)
class NoGate:
    """-r·A: every movement counts. At r = 1 its gradient is that of -A · log π, REINFORCE's (Williams 1992)."""

    def __call__(
        self, log_ratio: Float[Tensor, " tokens"], logprobs: Float[Tensor, " tokens"], signals: Signals
    ) -> Gated:
        return Gated(surrogate(log_ratio.exp(), signals.advantages), _nowhere(log_ratio), _nowhere(log_ratio))


@choice("gate", "clip")
@dataclass(frozen=True)
class Clip:
    """PPO's clip with its two sides apart. DAPO's clip-higher (arXiv 2503.14476) is `Clip(0.2, 0.28)`.

    A single number in a recipe, `clip: 0.1`, sets `low` and `high`.

    With `dual` c the loss of a token with A < 0 is at most c·|A|, and its gradient 0 for r > c: dual clip (arXiv 1912.09729,
    c = 3), and the two-sided clip of INTELLECT-2 (δ = 4).
    """

    low: float = 0.2
    """The ratio counts down to 1 - low; in (0, 1]."""
    high: float = 0.2
    """The ratio counts up to 1 + high; more than 0."""
    dual: float | None = None
    """More than 1 + high; None for no such bound."""
    one_value: ClassVar[tuple[str, ...]] = ("low", "high")
    """The fields that a single number in a recipe sets."""

    def __post_init__(self) -> None:
        if not 0.0 < self.low <= 1.0:
            raise ValueError(f"clip: low must be in (0, 1], for ratios down to 1 - low; given {self.low}")
        if not 0.0 < self.high < float("inf"):
            raise ValueError(f"clip: high must be more than 0 and finite, for ratios up to 1 + high; given {self.high}")
        if self.dual is not None and not self.dual > 1.0 + self.high:
            raise ValueError(f"clip: dual must be more than 1 + high = {1.0 + self.high}; given {self.dual}")

    def __call__(
        self, log_ratio: Float[Tensor, " tokens"], logprobs: Float[Tensor, " tokens"], signals: Signals
    ) -> Gated:
        ratio, advantages = log_ratio.exp(), signals.advantages
        losses = clip_surrogate(ratio, advantages, self.low, self.high)
        low = (advantages < 0) & (ratio < 1.0 - self.low)
        high = (advantages > 0) & (ratio > 1.0 + self.high)
        if self.dual is not None:
            losses = torch.where(advantages < 0, torch.minimum(losses, -self.dual * advantages), losses)
            high = high | ((advantages < 0) & (ratio > self.dual))
        return Gated(losses, low.detach(), high.detach())


@choice("gate", "soft")
@dataclass(frozen=True)
class Soft:
    """-f_τ(r)·A: the gradient decreases smoothly as the ratio leaves 1, and never becomes 0. SAPO, arXiv 2511.20347.

    A larger τ is a narrower gate. The loss at r = 1 is -2A/τ, not -A, so its value is no match for a clip's.
    """

    positive: float = 1.0
    """τ where A > 0; more than 0."""
    negative: float = 1.05
    """τ elsewhere; more than 0. Above `positive` is stable, below it is not (§5 of the paper)."""

    def __post_init__(self) -> None:
        for name in ("positive", "negative"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ValueError(f"soft gate: the temperature {name} must be more than 0, not {getattr(self, name)}")

    def __call__(
        self, log_ratio: Float[Tensor, " tokens"], logprobs: Float[Tensor, " tokens"], signals: Signals
    ) -> Gated:
        ratio = log_ratio.exp()
        temperature = torch.full_like(ratio, self.negative).masked_fill(signals.advantages > 0, self.positive)
        losses = -soft_gate(ratio, temperature) * signals.advantages
        return Gated(losses, _nowhere(ratio), _nowhere(ratio))


@choice("gate", "truncated_weight")
@dataclass(frozen=True)
class TruncatedWeight:
    """-sg[clamp(r, floor, cap)] · A · log π: the weight is bounded, and every token keeps a gradient. CISPO, arXiv 2506.13585.

    `cap` and `floor` are absolute ratios. With `masked` a token that PPO would clip at these bounds counts 0 (eq. 7).
    """

    cap: float = 5.0
    """More than 0; MiniMax does not disclose theirs, ScaleRL (arXiv 2510.13786) finds 4 to 8 alike."""
    floor: float | None = None
    """At least 0 and below cap; None for no lower bound, as in the paper's runs."""
    masked: bool = False
    """A token that PPO would clip at these bounds counts 0."""

    def __post_init__(self) -> None:
        if not 0.0 < self.cap < float("inf"):
            raise ValueError(f"truncated weight: cap must be more than 0 and finite; given {self.cap}")
        if self.floor is not None and not 0.0 <= self.floor < self.cap:
            raise ValueError(f"truncated weight: floor must be in [0, cap = {self.cap}); given {self.floor}")

    def __call__(
        self, log_ratio: Float[Tensor, " tokens"], logprobs: Float[Tensor, " tokens"], signals: Signals
    ) -> Gated:
        ratio, advantages = log_ratio.detach().exp(), signals.advantages
        low, high = ratio < (self.floor or 0.0), ratio > self.cap
        weight = ratio.clamp(self.floor or 0.0, self.cap)
        if self.masked:
            low, high = low & (advantages < 0), high & (advantages > 0)
            weight = weight.masked_fill(low | high, 0.0)
        return Gated(-weight * advantages * logprobs, low, high)


@choice("gate", "geometric_mean")
@dataclass(frozen=True)
class GeometricMean:
    """-A · exp( mean_t x̃_t ), where x̃ is the log-ratio of each token, clipped on the side that A points to.

        x̃_t = min(x_t, width)  for A > 0,    max(x_t, -width)  for A < 0

    GMPO, arXiv 2507.20673. GSPO clips after the mean, this before it: one token with an extreme ratio neither dominates its
    sequence nor removes its gradient. Under `sequence_mean` the gradient of a token that is not clipped is -A · exp(mean x̃) / L.
    """

    width: float = 0.4
    """In log-ratio, more than 0: ratios up to e^0.4 ≈ 1.49 and down to e^-0.4 ≈ 0.67."""

    def __post_init__(self) -> None:
        if not 0.0 < self.width < float("inf"):
            raise ValueError(f"geometric mean: width must be more than 0 and finite, not {self.width}")

    def __call__(
        self, log_ratio: Float[Tensor, " tokens"], logprobs: Float[Tensor, " tokens"], signals: Signals
    ) -> Gated:
        advantages, layout = signals.advantages, signals.layout
        high, low = (advantages > 0) & (log_ratio > self.width), (advantages < 0) & (log_ratio < -self.width)
        clipped = torch.where(high | low, log_ratio.detach().clamp(-self.width, self.width), log_ratio)
        mean = layout.expand(layout.mean(clipped, "sequence"), "sequence")
        return Gated(-mean.exp() * advantages, low.detach(), high.detach())
