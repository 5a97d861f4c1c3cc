"""Estimators of KL(π_θ ‖ π_ref) from tokens that π_θ chose, and the KL choice of an algorithm.

J. Schulman, "Approximating KL divergence" (2020). With d = log π_θ - log π_ref: k1 and k3 are unbiased, k2 and k3 are never
negative. As a loss on its own policy's samples k1 has no gradient in expectation, k2 has that of KL(π_θ ‖ π_ref), and k3 that of
KL(π_ref ‖ π_θ) (arXiv 2506.09477); k3 times the ratio π_θ/π_old, not detached, has that of KL(π_θ ‖ π_ref) for samples of
π_old too (DeepSeek-V3.2, arXiv 2512.02556 eq. 7).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reinlm.objectives.coefficients import Controller
from reinlm.objectives.ratios import exponent, token_log_ratio
from reinlm.objectives.registry import nested
from reinlm.objectives.signals import Signals

if TYPE_CHECKING:
    from jaxtyping import Float


def k1(logprobs: Float[Tensor, " *shape"], ref_logprobs: Float[Tensor, " *shape"]) -> Float[Tensor, " *shape"]:
    """d = log π_θ - log π_ref: unbiased, of either sign."""
    return logprobs - ref_logprobs


def k2(logprobs: Float[Tensor, " *shape"], ref_logprobs: Float[Tensor, " *shape"]) -> Float[Tensor, " *shape"]:
    """d² / 2: biased, low variance, and the right gradient on-policy."""
    return (logprobs - ref_logprobs).square() / 2.0


def k3(logprobs: Float[Tensor, " *shape"], ref_logprobs: Float[Tensor, " *shape"]) -> Float[Tensor, " *shape"]:
    """exp(-d) - 1 + d: unbiased and never negative. |d| is clamped to 20, where the gradient becomes 0."""
    difference = exponent(ref_logprobs - logprobs)
    return difference.exp() - 1.0 - difference


def full_kl(
    log_distribution: Float[Tensor, " *shape vocabulary"], ref_log_distribution: Float[Tensor, " *shape vocabulary"]
) -> Float[Tensor, " *shape"]:
    """KL(π_θ ‖ π_ref) = Σ_v π_θ(v) (log π_θ(v) - log π_ref(v)), exact at each position; tokens of probability 0 add 0."""
    difference = (log_distribution - ref_log_distribution).masked_fill(log_distribution == -float("inf"), 0.0)
    return (log_distribution.exp() * difference).sum(-1)


def full_entropy(log_distribution: Float[Tensor, " *shape vocabulary"]) -> Float[Tensor, " *shape"]:
    """H = -Σ_v π(v) log π(v) in nats, exact at each position; tokens of probability 0 add 0."""
    finite = log_distribution.clamp_min(torch.finfo(log_distribution.dtype).min)  # keeps 0 · -inf from being NaN
    return -(log_distribution.exp() * finite).sum(-1)


ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
PLACEMENTS = {
    "loss": ("k2", "k3", "k3_unbiased", "full"),
    "token_reward": ("k1", "k2", "k3"),
    "sequence_reward": ("k1", "k2", "k3"),
}
"""Where a KL may stand, and what it may be estimated with there."""


@dataclass(frozen=True)
class KL:
    """What ties the policy to another: coefficient · estimate, in the loss of every token or in the reward.

    Placed in the loss, + coefficient · k(log π_θ, log π_ref), with a gradient. Placed in the reward it has none: of every
    token, R_t -= coefficient · k_t, for advantages that sum rewards over time (PPO for language models, arXiv 1909.08593); or of
    the sequence, R -= coefficient · Σ_t k_t before the baseline (RLOO, arXiv 2402.14740).

    Anchored on the old policy, the weights at the start of the update, the estimate is of KL(π_old ‖ π_θ), from π_old's own
    tokens: PPO's penalty (arXiv 1707.06347 §4).

    Raises ValueError for an estimator that is unknown, or that says nothing where it is placed.
    """

    estimator: str = "k3"
    """"k1", "k2", "k3", "k3_unbiased" (times the ratio to the old policy) or "full" (the whole distribution)."""
    coefficient: float = 0.04
    """At least 0. DeepSeekMath (arXiv 2402.03300) uses 0.04, DeepSeek-R1 0.001."""
    anchor: str = "reference"
    """"reference" or "old"."""
    placement: str = "loss"
    """"loss", "token_reward" or "sequence_reward"."""
    controller: Controller | None = field(default=None, metadata=nested("controller"))
    """How the coefficient moves from batch to batch; None: it stays."""

    def __post_init__(self) -> None:
        if self.anchor not in {"reference", "old"}:
            raise ValueError(f"KL: the anchor is reference or old, not {self.anchor!r}")
        if self.placement not in PLACEMENTS:
            raise ValueError(f"KL: the placement is one of {', '.join(PLACEMENTS)}, not {self.placement!r}")
        known = dict.fromkeys(name for names in PLACEMENTS.values() for name in names)
        if self.estimator not in known:
            raise ValueError(f"unknown KL estimator {self.estimator!r}; allowed: {', '.join(sorted(known))}")
        if self.estimator == "k1" and self.placement == "loss":
            raise ValueError(
                "k1 as a loss has no gradient in expectation, so it ties the policy to nothing; use k2 or k3"
            )
        allowed = PLACEMENTS[self.placement]
        if self.anchor == "old":
            allowed = ("k2", "k3")
            if self.placement != "loss":
                raise ValueError(
                    "the old policy drew the samples, so a KL to it in the reward is 0; place it in the loss"
                )
        if self.estimator not in allowed:
            raise ValueError(
                f"KL estimator {self.estimator!r} to the {self.anchor} policy in the {self.placement}: "
                f"allowed are {', '.join(allowed)}"
            )
        if not 0.0 <= self.coefficient < float("inf"):
            raise ValueError(f"the KL coefficient must be at least 0 and finite, not {self.coefficient}")

    @property
    def active(self) -> bool:
        """Whether it can ever count."""
        return self.coefficient > 0.0 or self.controller is not None

    @property
    def in_loss(self) -> bool:
        return self.placement == "loss"

    def __call__(
        self,
        logprobs: Float[Tensor, " tokens"],
        signals: Signals,
        full: Float[Tensor, " tokens"] | None = None,
        against: str = "old",
    ) -> Float[Tensor, " tokens"]:
        """The estimate of each token as a loss, with a gradient.

        `full` is the exact divergence, for that estimator; `against` is who drew the samples, for "k3_unbiased".

        Raises ValueError where the reference log-probabilities, or `full`, are missing.
        """
        if self.anchor == "old":
            moved = token_log_ratio(logprobs, signals)
            return ESTIMATORS[self.estimator](-moved, -moved.new_zeros(()).expand_as(moved))
        if self.estimator == "full":
            if full is None:
                raise ValueError("a KL over the full distribution needs it from the forward pass: full_kl is missing")
            return full
        if signals.ref_logprobs is None:
            raise ValueError("a KL to the reference needs ref_logprobs, and there are none")
        if self.estimator == "k3_unbiased":
            return token_log_ratio(logprobs, signals, against).exp() * k3(logprobs, signals.ref_logprobs)
        return ESTIMATORS[self.estimator](logprobs, signals.ref_logprobs)

    def reward(
        self, old_logprobs: Float[Tensor, " tokens"], ref_logprobs: Float[Tensor, " tokens"]
    ) -> Float[Tensor, " tokens"]:
        """The estimate of each token of the policy that drew it, a constant for the reward."""
        return ESTIMATORS[self.estimator](old_logprobs, ref_logprobs)
