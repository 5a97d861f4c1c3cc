"""Estimators of KL(π_θ ‖ π_ref) from tokens that π_θ chose, and the KL choice of an algorithm.

J. Schulman, "Approximating KL divergence" (2020). With d = log π_θ - log π_ref: k1 and k3 are unbiased, k2 and k3 are never
negative. As a loss on its own policy's samples k1 has no gradient in expectation, k2 has that of KL(π_θ ‖ π_ref), and k3 that of
KL(π_ref ‖ π_θ) (arXiv 2506.09477).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from reinlm.objectives.ratios import exponent

if TYPE_CHECKING:
    from jaxtyping import Float


def k1(logprobs: Float[Tensor, "*shape"], ref_logprobs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """d = log π_θ - log π_ref: unbiased, of either sign."""
    return logprobs - ref_logprobs


def k2(logprobs: Float[Tensor, "*shape"], ref_logprobs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """d² / 2: biased, low variance, and the right gradient on-policy."""
    return (logprobs - ref_logprobs).square() / 2.0


def k3(logprobs: Float[Tensor, "*shape"], ref_logprobs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """exp(-d) - 1 + d: unbiased and never negative. |d| is clamped to 20, where the gradient becomes 0."""
    difference = exponent(ref_logprobs - logprobs)
    return difference.exp() - 1.0 - difference


ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k2": k2, "k3": k3}


@dataclass(frozen=True)
class KL:
    """A tie to the reference model, added to the loss of every token: + coefficient · estimator(log π_θ, log π_ref).

    Raises ValueError for an unknown estimator, and for k1, which as a loss has no gradient in expectation and so ties nothing.
    """

    estimator: str = "k3"
    """"k2" or "k3"."""
    coefficient: float = 0.04
    """At least 0. DeepSeekMath (arXiv 2402.03300) uses 0.04, DeepSeek-R1 0.001."""

    def __post_init__(self) -> None:
        if self.estimator == "k1":
            raise ValueError(
                "k1 as a loss has no gradient in expectation, so it ties the policy to nothing; use k2 or k3"
            )
        if self.estimator not in ESTIMATORS:
            raise ValueError(f"unknown KL estimator {self.estimator!r}; allowed: {', '.join(ESTIMATORS)}")
        if not 0.0 <= self.coefficient < float("inf"):
            raise ValueError(f"the KL coefficient must be at least 0 and finite, not {self.coefficient}")

    def __call__(
        self, logprobs: Float[Tensor, "tokens"], ref_logprobs: Float[Tensor, "tokens"]
    ) -> Float[Tensor, "tokens"]:
        return ESTIMATORS[self.estimator](logprobs, ref_logprobs)
