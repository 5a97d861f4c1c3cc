"""Estimators of the divergence between policy and reference from tokens that the policy chose, and the KL choice.

The reverse one, KL(π_θ ‖ π_ref), keeps the policy where the reference is; the forward one, KL(π_ref ‖ π_θ), keeps it wherever
the reference is, and is infinite where the policy rules out what the reference does. J. Schulman, "Approximating KL
divergence" (2020): with d = log π_θ - log π_ref, k1 and k3 estimate the reverse one and f3 the forward one without bias; k2,
k3 and f3 are never negative.

As a loss on the policy's own samples k1 has no gradient in expectation, k2 has that of the reverse one, k3 that of the forward
one (arXiv 2506.09477), and f3 that of neither. Times the ratio π_θ/π_old, not detached, k3 has that of the reverse one
(DeepSeek-V3.2, arXiv 2512.02556 eq. 7) and f3 that of the forward one, for samples of π_old too.
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


def f3(logprobs: Float[Tensor, " *shape"], ref_logprobs: Float[Tensor, " *shape"]) -> Float[Tensor, " *shape"]:
    """r log r - (r - 1) with r = π_ref/π_θ: estimates KL(π_ref ‖ π_θ), unbiased and never negative. |d| is clamped to 20."""
    difference = exponent(ref_logprobs - logprobs)
    return difference.exp() * (difference - 1.0) + 1.0


def full_kl(
    log_distribution: Float[Tensor, " *shape vocabulary"], ref_log_distribution: Float[Tensor, " *shape vocabulary"]
) -> Float[Tensor, " *shape"]:
    """KL(π_θ ‖ π_ref) = Σ_v π_θ(v) (log π_θ(v) - log π_ref(v)), exact at each position; tokens of probability 0 add 0."""
    difference = (log_distribution - ref_log_distribution).masked_fill(log_distribution == -float("inf"), 0.0)
    return (log_distribution.exp() * difference).sum(-1)


def full_divergence(
    log_distribution: Float[Tensor, " *shape vocabulary"],
    anchor_log_distribution: Float[Tensor, " *shape vocabulary"],
    direction: str,
) -> Float[Tensor, " *shape"]:
    """`full_kl` of the policy from its anchor ("reverse"), or of the anchor from the policy ("forward").

    Gradients with respect to logits: reverse π_i (log π_i/anchor_i - KL), forward π_i - anchor_i.
    """
    if direction == "forward":
        return full_kl(anchor_log_distribution, log_distribution)
    return full_kl(log_distribution, anchor_log_distribution)


def full_entropy(log_distribution: Float[Tensor, " *shape vocabulary"]) -> Float[Tensor, " *shape"]:
    """H = -Σ_v π(v) log π(v) in nats, exact at each position; tokens of probability 0 add 0."""
    finite = log_distribution.clamp_min(torch.finfo(log_distribution.dtype).min)  # keeps 0 · -inf from being NaN
    return -(log_distribution.exp() * finite).sum(-1)


ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
UNBIASED = {"k3_unbiased": k3, "f3_unbiased": f3}
"""Estimators that are multiplied by the ratio π_θ/π_old, with its gradient."""
NAMES = (*ESTIMATORS, *UNBIASED, "full")
ANCHORS = ("reference", "old", "teacher")
PLACEMENTS = ("loss", "token_reward", "sequence_reward")


@dataclass(frozen=True)
class KL:
    """Regularisation by a KL divergence: coefficient · estimate, in the loss of every token or in the reward.

    Placed in the loss, + coefficient · k(log π_θ, log π_ref), with a gradient. Placed in the reward it has none: of every
    token, R_t -= coefficient · k_t, for advantages that sum rewards over time (PPO for language models, arXiv 1909.08593); or of
    the sequence, R -= coefficient · Σ_t k_t before the baseline (RLOO, arXiv 2402.14740).

    The full divergence in the reward does not depend on the token that was chosen, so alone it has no gradient at its own
    state. The same KL in the reward and in the loss is the exact gradient of E Σ_t KL(state_t): with γ = λ = 1, advantages
    that are not divided, the same token weights for both, at the first update of a batch. `Algorithm` accepts that pair.

    Anchored on the old policy, the weights at the start of the update, the estimate is of KL(π_old ‖ π_θ), from π_old's own
    tokens: PPO's penalty (arXiv 1707.06347 §4). Anchored on a teacher it is the loss of distillation (GKD, arXiv 2306.13649).

    Raises ValueError for an estimator that is unknown, or that does not follow its direction where it is placed.
    """

    estimator: str = "k3"
    """"k1", "k2", "k3", "k3_unbiased" and "f3_unbiased" (times the ratio to the old policy), or "full" (the whole vocabulary)."""
    coefficient: float = 0.04
    """At least 0. DeepSeekMath (arXiv 2402.03300) uses 0.04, DeepSeek-R1 0.001."""
    anchor: str = "reference"
    """"reference", "old" or "teacher"."""
    placement: str = "loss"
    """"loss", "token_reward" or "sequence_reward"."""
    controller: Controller | None = field(default=None, metadata=nested("controller"))
    """How the coefficient moves from batch to batch; None: it stays."""
    direction: str | None = None
    """"reverse", KL(π_θ ‖ anchor), or "forward", KL(anchor ‖ π_θ). None: forward to the old policy, else reverse; alone then
    k3 may stand in the loss as in GRPO: it estimates the reverse divergence, and its gradient is that of the forward one."""
    allow_reward_alone: bool = False
    """Whether a full divergence may stand in the reward without its pair in the loss."""

    def __post_init__(self) -> None:
        if self.anchor not in ANCHORS:
            raise ValueError(f"KL: the anchor is one of {', '.join(ANCHORS)}, not {self.anchor!r}")
        if self.placement not in PLACEMENTS:
            raise ValueError(f"KL: the placement is one of {', '.join(PLACEMENTS)}, not {self.placement!r}")
        if self.direction not in {None, "reverse", "forward"}:
            raise ValueError(f"KL: the direction is reverse or forward, not {self.direction!r}")
        if self.estimator not in (*NAMES, "f3"):
            raise ValueError(f"unknown KL estimator {self.estimator!r}; allowed: {', '.join(sorted(NAMES))}")
        _refuse_wrong_gradients(self)
        allowed = _allowed(self)
        if self.estimator not in allowed:
            raise ValueError(
                f"KL estimator {self.estimator!r} to the {self.anchor} policy in the {self.placement}, "
                f"{'forward' if self.forward else 'reverse'}: allowed are {', '.join(allowed)}"
            )
        if self.allow_reward_alone and (self.in_loss or self.estimator != "full"):
            raise ValueError("allow_reward_alone has no effect but on a full KL in the reward; leave it out")
        if not 0.0 <= self.coefficient < float("inf"):
            raise ValueError(f"the KL coefficient must be at least 0 and finite, not {self.coefficient}")

    @property
    def active(self) -> bool:
        """Whether it can be nonzero: the coefficient is above 0 or adaptive."""
        return self.coefficient > 0.0 or self.controller is not None

    @property
    def in_loss(self) -> bool:
        return self.placement == "loss"

    @property
    def forward(self) -> bool:
        """Whether it is the divergence of the anchor from the policy."""
        return self.anchor == "old" if self.direction is None else self.direction == "forward"

    def __call__(
        self,
        logprobs: Float[Tensor, " tokens"],
        signals: Signals,
        full: Float[Tensor, " tokens"] | None = None,
        against: str = "old",
    ) -> Float[Tensor, " tokens"]:
        """The estimate of each token as a loss, with a gradient.

        `full` is the exact divergence, for that estimator; `against` is who drew the samples, for the unbiased ones.

        Raises ValueError where the reference log-probabilities, or `full`, are missing.
        """
        if self.estimator == "full":
            if full is None:
                raise ValueError(f"a KL over the full distribution needs it from the forward pass: {FULL[self.anchor]}")
            return full
        if self.anchor == "old":
            moved = token_log_ratio(logprobs, signals)
            return ESTIMATORS[self.estimator](-moved, -moved.new_zeros(()).expand_as(moved))
        if signals.ref_logprobs is None:
            raise ValueError("a KL to the reference needs ref_logprobs, and there are none")
        if self.estimator in UNBIASED:
            ratio = token_log_ratio(logprobs, signals, against).exp()
            return ratio * UNBIASED[self.estimator](logprobs, signals.ref_logprobs)
        return ESTIMATORS[self.estimator](logprobs, signals.ref_logprobs)

    def reward(
        self, old_logprobs: Float[Tensor, " tokens"], ref_logprobs: Float[Tensor, " tokens"]
    ) -> Float[Tensor, " tokens"]:
        """The estimate of each token of the policy that drew it, a constant for the reward; not for "full"."""
        return ESTIMATORS[self.estimator](old_logprobs, ref_logprobs)


FULL = {
    "reference": "full_kl is missing",
    "old": "full_old_kl is missing",
    "teacher": "full_teacher_kl is missing",
}


def _refuse_wrong_gradients(kl: KL) -> None:
    """Raise ValueError, with the reason, for what would follow another divergence than it names."""
    if kl.estimator == "k1" and kl.in_loss:
        raise ValueError("k1 as a loss has no gradient in expectation, so it ties the policy to nothing; use k2 or k3")
    if kl.estimator == "f3":
        raise ValueError(
            "f3 as a plain loss, or as a constant in the reward, follows neither direction; for the forward one take k3 "
            "in the loss, or f3_unbiased, which is f3 times the ratio"
        )
    if kl.anchor == "old" and not kl.in_loss:
        raise ValueError("the old policy drew the samples, so a KL to it in the reward is 0; place it in the loss")
    if kl.anchor == "old" and kl.direction == "reverse":
        raise ValueError("samples of the old policy estimate KL(π_old ‖ π_θ): to the old policy take direction=forward")
    if kl.anchor == "teacher" and (kl.estimator != "full" or not kl.in_loss):
        raise ValueError(
            "a KL to the teacher is estimator=full in the loss; for the sampled one take advantage=teacher_log_ratio"
        )
    if kl.direction == "reverse" and kl.estimator == "k3" and kl.in_loss:
        raise ValueError(
            "k3 as a plain loss follows the forward KL; for the reverse one take k2, k3_unbiased or full "
            "(or leave the direction out, for the k3 of GRPO)"
        )


def _allowed(kl: KL) -> tuple[str, ...]:
    if kl.anchor == "old":
        return ("k2", "k3", "full")
    if kl.forward:
        return ("k3", "f3_unbiased", "full") if kl.in_loss else ("full",)
    return ("k2", "k3", "k3_unbiased", "full") if kl.in_loss else ("k1", "k2", "k3", "full")
