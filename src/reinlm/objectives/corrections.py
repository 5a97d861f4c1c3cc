"""Constant weights for samples that another policy drew: an engine that computes otherwise, or weights that are older.

ρ_t = π_old(y_t) / π_rollout(y_t), and every weight here is a function of it: computed in `prepare`, over a whole optimizer
step, without gradient. They multiply the gated loss, not the KL, and leave denominators as they are. A token whose sampler
gave no finite log-probability has weight 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reinlm.objectives.layout import LEVELS, Layout, Level
from reinlm.objectives.ratios import exponent, precise
from reinlm.objectives.registry import choice
from reinlm.objectives.signals import Signals

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


class Correction:
    """(weights so far [N], log ρ [N], layout) -> weights [N]; several are applied one after the other."""

    @property
    def by_sequence(self) -> bool:
        """Whether the weights of a sequence depend on its own tokens alone, so that a step can be weighed part by part."""
        return False

    def __call__(
        self, weights: Float[Tensor, " tokens"], log_rho: Float[Tensor, " tokens"], layout: Layout
    ) -> Float[Tensor, " tokens"]:
        raise NotImplementedError


def correct(
    corrections: Sequence[Correction],
    old_logprobs: Float[Tensor, " tokens"],
    rollout_logprobs: Float[Tensor, " tokens"],
    layout: Layout,
) -> Float[Tensor, " tokens"]:
    """The weights that all corrections together give to each token, in float32 or better."""
    known = rollout_logprobs.isfinite()
    difference = old_logprobs - torch.where(known, rollout_logprobs, old_logprobs)
    difference = difference.to(precise(difference))
    weights = known.to(difference.dtype)
    for correction in corrections:
        weights = correction(weights, difference, layout)
    return weights


def importance(log_rho: Float[Tensor, " tokens"], layout: Layout, level: Level | str) -> Float[Tensor, " tokens"]:
    """ρ of each token, or the product over its turn, sequence or episode, at each token."""
    if level == "token":
        return exponent(log_rho).exp()
    if level not in LEVELS[:3]:
        raise ValueError(f"correction: level is token, {', '.join(LEVELS[:3])}, not {level!r}")
    by: Level = level
    return layout.expand(exponent(layout.sum(log_rho, by)).exp(), by)


def _check_level(name: str, level: str) -> None:
    if level not in ("token", *LEVELS[:3]):
        raise ValueError(f"{name}: level is one of token, {', '.join(LEVELS[:3])}, not {level!r}")


def _check_range(name: str, low: float, high: float) -> None:
    if not 0.0 <= low < high:
        raise ValueError(f"{name}: needs 0 ≤ low < high, not {low} and {high}")


@choice("correction", "truncated")
@dataclass(frozen=True)
class Truncated(Correction):
    """min(ρ, cap): truncated importance sampling (TIS), of tokens or of products over a sequence.

    Token weights ignore the ratios before them: biased for the sequence, with low variance. Products are unbiased up to
    the cap, and grow apart with length. `floor` bounds them from below too.
    """

    cap: float = 2.0
    """The largest weight."""
    floor: float = 0.0
    """The least weight."""
    level: str = "token"
    """Ratios of single tokens, or their products over a turn, sequence or episode."""

    def __post_init__(self) -> None:
        _check_range("truncated", self.floor, self.cap)
        _check_level("truncated", self.level)

    @property
    def by_sequence(self) -> bool:
        return self.level != "episode"

    def __call__(
        self, weights: Float[Tensor, " tokens"], log_rho: Float[Tensor, " tokens"], layout: Layout
    ) -> Float[Tensor, " tokens"]:
        return weights * importance(log_rho, layout, self.level).clamp(self.floor, self.cap)


@choice("correction", "masked")
@dataclass(frozen=True)
class Masked(Correction):
    """ρ where low ≤ ρ ≤ high, else 0: masked importance sampling; of tokens, IcePop (Ring-1T, arXiv 2510.18855)."""

    low: float = 0.5
    """Below it a ratio counts 0."""
    high: float = 5.0
    """Above it a ratio counts 0."""
    level: str = "token"
    """Ratios of single tokens, or their products over a turn, sequence or episode."""

    def __post_init__(self) -> None:
        _check_range("masked", self.low, self.high)
        _check_level("masked", self.level)

    @property
    def by_sequence(self) -> bool:
        return self.level != "episode"

    def __call__(
        self, weights: Float[Tensor, " tokens"], log_rho: Float[Tensor, " tokens"], layout: Layout
    ) -> Float[Tensor, " tokens"]:
        rho = importance(log_rho, layout, self.level)
        return weights * torch.where((rho >= self.low) & (rho <= self.high), rho, 0.0)


@choice("correction", "geometric")
@dataclass(frozen=True)
class GeometricFilter(Correction):
    """1 where low ≤ exp(mean_t log ρ_t) ≤ high over the sequence, else 0. "When Speed Kills Stability" (Liu, Li et al., 2025)."""

    low: float = 0.999
    """The least mean ratio of a sequence that counts."""
    high: float = 1.001
    """The largest mean ratio of a sequence that counts."""

    @property
    def by_sequence(self) -> bool:
        return True

    def __post_init__(self) -> None:
        _check_range("geometric", self.low, self.high)

    def __call__(
        self, weights: Float[Tensor, " tokens"], log_rho: Float[Tensor, " tokens"], layout: Layout
    ) -> Float[Tensor, " tokens"]:
        mean = exponent(layout.mean(log_rho, "sequence")).exp()
        return weights * layout.expand(((mean >= self.low) & (mean <= self.high)).to(weights.dtype), "sequence")


@choice("correction", "k3_filter")
@dataclass(frozen=True)
class K3Filter(Correction):
    """1 where the mean over the sequence of ρ - 1 - log ρ is at most `limit`, else 0."""

    limit: float = 0.01
    """The largest mean divergence in nats; more than 0."""

    def __post_init__(self) -> None:
        if not self.limit > 0.0:
            raise ValueError(f"k3_filter: limit must be more than 0, not {self.limit}")

    @property
    def by_sequence(self) -> bool:
        return True

    def __call__(
        self, weights: Float[Tensor, " tokens"], log_rho: Float[Tensor, " tokens"], layout: Layout
    ) -> Float[Tensor, " tokens"]:
        log_rho = exponent(log_rho)
        divergence = layout.mean(log_rho.exp() - 1.0 - log_rho, "sequence")
        return weights * layout.expand((divergence <= self.limit).to(weights.dtype), "sequence")


@choice("correction", "self_normalized")
@dataclass(frozen=True)
class SelfNormalized(Correction):
    """The weights so far divided by their mean over the tokens of the step, so that they average 1."""

    def __call__(
        self, weights: Float[Tensor, " tokens"], log_rho: Float[Tensor, " tokens"], layout: Layout
    ) -> Float[Tensor, " tokens"]:
        total = weights.sum()
        return weights * torch.where(total > 0.0, weights.numel() / total.clamp(min=1e-30), 0.0)


def effective_sample_size(weights: Float[Tensor, " tokens"]) -> Float[Tensor, ""]:
    """(Σ w)² / Σ w², in [0, N]: how many equally weighted tokens say as much. 0 where all weights are 0."""
    squares = weights.square().sum()
    return torch.where(squares > 0.0, weights.sum().square() / squares.clamp(min=1e-30), 0.0)


@choice("sequence_mask", "off_policy")
@dataclass(frozen=True)
class OffPolicyMask:
    """Masks sequences with negative advantage whose probability has fallen far. DeepSeek-V3.2, arXiv 2512.02556 eqs. 8 and 9.

        M_t = 0  where  A_t < 0  and  (1/L_i) Σ_t log π_rollout/π_θ > threshold,  else 1

    It follows the current policy, without gradient, and multiplies the gated loss, not the KL; denominators stay. Without
    log-probabilities of the sampler those of the old policy are used.
    """

    threshold: float = 0.1
    """δ in nats a token, at least 0. The paper gives none; 0.03 to 0.5 are in use."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold < float("inf"):
            raise ValueError(f"off-policy mask: the threshold must be at least 0 and finite, not {self.threshold}")

    def __call__(self, logprobs: Float[Tensor, " tokens"], signals: Signals) -> Bool[Tensor, " tokens"]:
        """True where a token counts."""
        drew = signals.rollout_logprobs if signals.rollout_logprobs is not None else signals.old_logprobs
        if drew is None:
            return torch.ones_like(signals.advantages, dtype=torch.bool)
        layout = signals.layout
        known = drew.isfinite()  # tokens that the sampler could not score are ignored
        gap = torch.where(known, drew, 0.0) - torch.where(known, logprobs.detach(), 0.0)
        left = layout.expand(layout.mean(gap, "sequence"), "sequence")
        return ~((signals.advantages < 0) & (left > self.threshold))


def kept_logprobs(
    logits: Float[Tensor, " *shape vocabulary"],
    chosen: torch.Tensor,
    kept: Bool[Tensor, " *shape vocabulary"],
) -> Float[Tensor, " *shape"]:
    """z_y - logsumexp over the kept tokens: the policy renormalised over the set that top-p or top-k kept.

    "Keep Sampling Mask", DeepSeek-V3.2, arXiv 2512.02556 §3.1. `chosen` are token ids; a chosen token is always in the set.
    """
    kept = kept.scatter(-1, chosen.unsqueeze(-1), True)
    inside = logits.masked_fill(~kept, -torch.inf)
    return torch.log_softmax(inside, dim=-1).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)


def decoupled_mix(version: int, proximal: int, behaviour: int) -> float:
    """α = (v_prox - v_behav) / (v_θ - v_behav), clamped to [0, 1], of the log-linear stand-in for old log-probabilities.

        log π_old ≈ log π_rollout + α (log π_θ - log π_rollout)

    Decoupled PPO as in AReaL, arXiv 2505.24298. `version` v_θ counts updates of the current weights, `proximal` those at
    the start of the update, `behaviour` those of the sampler. 1 where nothing is stale.
    """
    if version <= behaviour:
        return 1.0
    return min(max((proximal - behaviour) / (version - behaviour), 0.0), 1.0)


def admissible_rollouts(version: int, batch: int, lag: int) -> int:
    """How many rollouts may be accepted or running while the weights are at `version`: (version + lag + 1) · batch.

    Staleness control of AReaL, arXiv 2505.24298: no sample is then trained on more than `lag` versions after it began.
    """
    return (version + lag + 1) * batch
