"""Per-token loss terms beside the gate: KL, entropy bonus, negative log-likelihood; and their protocol `LossTerm`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from reinlm.objectives.kl import KL
from reinlm.objectives.registry import choice
from reinlm.objectives.signals import Signals

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class PolicyDistribution:
    """Per-token quantities of the policy's whole distribution, with a gradient; None if the algorithm does not need them."""

    entropy: Float[Tensor, " tokens"] | None = None
    """H of the policy at each token, in nats."""
    full_kl: Mapping[str, Float[Tensor, " tokens"]] = field(default_factory=dict)
    """Anchor ("reference", "old", "teacher") -> divergence from it over the vocabulary at the state of each token, in the
    direction of the algorithm's KL."""


class LossTerm(Protocol):
    """(logprobs [N] with a gradient, signals, distribution) -> a loss of each token, weighed by the token weights as the gate is.

    Its own coefficient is part of it. A slice sees whole sequences, and no more of the step than `signals` says. The result is
    a floating-point tensor [N].
    """

    @property
    def needs(self) -> frozenset[str]:
        """ "entropy", or names of signals: "old_logprobs", "rollout_logprobs", "ref_logprobs", "teacher_logprobs", or of columns.

        `Algorithm.prepare` refuses to go on without the signals, `Algorithm.loss` without the entropy.
        """
        ...

    def __call__(
        self, logprobs: Float[Tensor, " tokens"], signals: Signals, distribution: PolicyDistribution
    ) -> Float[Tensor, " tokens"]: ...


@dataclass(frozen=True)
class KLTerm:
    """coefficient · the estimate of a KL that is placed in the loss."""

    kl: KL
    coefficient: float
    against: str = "old"
    """Who drew the samples, for the estimators that are multiplied by a ratio."""

    @property
    def needs(self) -> frozenset[str]:
        sampled = self.kl.anchor == "reference" and self.kl.estimator != "full"
        return frozenset({"ref_logprobs"}) if sampled else frozenset()

    def __call__(
        self, logprobs: Float[Tensor, " tokens"], signals: Signals, distribution: PolicyDistribution
    ) -> Float[Tensor, " tokens"]:
        full = distribution.full_kl.get(self.kl.anchor)
        return self.coefficient * self.kl(logprobs, signals, full, self.against)


@dataclass(frozen=True)
class EntropyTerm:
    """- coefficient · the entropy of each token."""

    coefficient: float
    needs = frozenset({"entropy"})

    def __call__(
        self, logprobs: Float[Tensor, " tokens"], signals: Signals, distribution: PolicyDistribution
    ) -> Float[Tensor, " tokens"]:
        assert distribution.entropy is not None  # `Algorithm.loss` has looked
        return -self.coefficient * distribution.entropy


@choice("term", "nll")
@dataclass(frozen=True)
class NegativeLogLikelihood:
    """- coefficient · c_t · log π_θ(y_t), where c_t is a column of the data: imitation of the tokens that it marks.

    Without a column c_t = 1 for every token. With 1 for right answers and 0 for others it is the positive-example loss of
    VAPO (arXiv 2504.05118, μ = 0.1), up to the token weights, which are the algorithm's.
    """

    coefficient: float = 0.1
    """More than 0."""
    column: str | None = None
    """A per-token column, such as one that marks the tokens of right answers."""

    def __post_init__(self) -> None:
        if not 0.0 < self.coefficient < float("inf"):
            raise ValueError(f"nll: the coefficient must be more than 0 and finite, not {self.coefficient}")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset() if self.column is None else frozenset({self.column})

    def __call__(
        self, logprobs: Float[Tensor, " tokens"], signals: Signals, distribution: PolicyDistribution
    ) -> Float[Tensor, " tokens"]:
        marked = 1.0 if self.column is None else signals.columns[self.column]
        return -self.coefficient * marked * logprobs
