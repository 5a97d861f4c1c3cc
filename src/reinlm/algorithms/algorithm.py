"""One update, five choices: how the choices meet the data.

advantages (whole batch) -> prepare (one optimizer step) -> loss (a slice of it) -> advance (after the step)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reinlm.algorithms.filters import GroupFilter
from reinlm.algorithms.shapers import Shaper
from reinlm.objectives import (
    KL,
    Advantage,
    Aggregation,
    Counts,
    Gate,
    Gated,
    Layout,
    Loss,
    Metrics,
    Ratio,
    SequenceRatio,
    Signals,
    k3,
    token_mean,
)
from reinlm.objectives.ratios import exponent, precise, token_log_ratio

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


@dataclass(frozen=True)
class AlgorithmState:
    """What moves while an algorithm runs; the checkpoint holds it."""

    updates: int = 0
    kl_coefficient: float = 0.0


@dataclass(frozen=True)
class Objective:
    """What the padded adapter returns."""

    loss: Float[Tensor, ""]
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Algorithm:
    """loss = Σ_t w_t · ( gate(ratio_t, advantage_t) + β · KL_t ), with each choice a value that can be swapped.

    Frozen: what moves is in `AlgorithmState`. Raises ValueError for choices that contradict one another.
    """

    name: str
    """What it is called; free for a changed one."""
    advantage: Advantage
    ratio: Ratio
    gate: Gate
    weights: Aggregation
    kl: KL | None = None
    shapers: tuple[Shaper, ...] = ()
    """Added to the rewards before the advantage."""
    filters: tuple[GroupFilter, ...] = ()
    """Which groups are trained on; dropped ones are sampled anew."""
    source: str = ""
    """Paper and arXiv id."""
    base: str = ""
    """The named algorithm that a renamed one changes; empty where `name` is its own."""

    def __post_init__(self) -> None:
        if isinstance(self.ratio, SequenceRatio) and self.weights is token_mean:
            raise ValueError(
                "one ratio a sequence under a token mean lets long answers weigh more than short ones; "
                "take weights=sequence_mean, or ratio=token"
            )

    @property
    def needs_reference(self) -> bool:
        """Whether a reference model has to be kept."""
        return self.kl is not None and self.kl.coefficient > 0.0

    def initial_state(self) -> AlgorithmState:
        return AlgorithmState(kl_coefficient=self.kl.coefficient if self.kl else 0.0)

    def advance(self, state: AlgorithmState, measured: Mapping[str, float]) -> AlgorithmState:
        """The state after an update; `measured` holds its detached metrics. A fixed KL coefficient does not move."""
        return replace(state, updates=state.updates + 1)

    def prepare(
        self,
        layout: Layout,
        advantages: Float[Tensor, "tokens"],
        *,
        old_logprobs: Float[Tensor, "tokens"] | None = None,
        rollout_logprobs: Float[Tensor, "tokens"] | None = None,
        ref_logprobs: Float[Tensor, "tokens"] | None = None,
        counts: Counts | None = None,
    ) -> Signals:
        """What one optimizer step needs, computed once and without gradient.

        `counts` are those of the whole step over all ranks; by default those of `layout`. Raises ValueError where the
        algorithm needs reference log-probabilities and none are given, or where any tensor carries a gradient.
        """
        if self.needs_reference and ref_logprobs is None:
            raise ValueError(f"{self.name} ties the policy to a reference: ref_logprobs is missing (or take kl=None)")
        counts = Counts.of(layout) if counts is None else counts
        weights = self.weights(layout, counts)
        return Signals(layout, advantages, weights, old_logprobs, rollout_logprobs, ref_logprobs)

    def loss(self, logprobs: Float[Tensor, "tokens"], signals: Signals, state: AlgorithmState) -> Loss:
        """The loss of a slice of one optimizer step; slices add up. `logprobs` is the only tensor with a gradient."""
        logprobs = logprobs.to(precise(logprobs))
        log_ratio = self.ratio(logprobs, signals)
        gated = self.gate(log_ratio, logprobs, signals)
        losses = gated.losses
        if self.kl is not None and signals.ref_logprobs is not None:
            losses = losses + state.kl_coefficient * self.kl(logprobs, signals.ref_logprobs)
        value = (signals.weights * losses).sum()
        with torch.no_grad():
            return Loss(value, _measure(logprobs.detach(), log_ratio.detach(), gated, signals))

    def objective(
        self,
        logprobs: Float[Tensor, "rows columns"],
        old_logprobs: Float[Tensor, "rows columns"],
        advantages: Float[Tensor, "rows columns"] | Float[Tensor, "rows"],
        mask: Bool[Tensor, "rows columns"],
        *,
        ref_logprobs: Float[Tensor, "rows columns"] | None = None,
        rollout_logprobs: Float[Tensor, "rows columns"] | None = None,
        groups: Int[Tensor, "rows"] | None = None,
        state: AlgorithmState | None = None,
    ) -> Objective:
        """The padded adapter: tensors [B, T] with a mask that is True on tokens that the policy chose.

        What stands at masked positions, infinity and NaN included, changes nothing. `advantages` is [B, T] or [B];
        `groups` numbers the prompt of each row (for prompt means). Raises ValueError for shapes that do not agree.
        """
        mask = mask.bool()
        given = {"old_logprobs": old_logprobs, "ref_logprobs": ref_logprobs, "rollout_logprobs": rollout_logprobs}
        for name, x in {"logprobs": logprobs, **given}.items():
            if x is not None and x.shape != mask.shape:
                raise ValueError(f"{name} has shape {tuple(x.shape)}, the mask {tuple(mask.shape)}; both are [B, T]")
        if advantages.shape not in {mask.shape, mask.shape[:1]}:
            raise ValueError(f"advantages has shape {tuple(advantages.shape)}; [B] or [B, T] of {tuple(mask.shape)}")
        if groups is not None and groups.shape != mask.shape[:1]:
            raise ValueError(f"groups has shape {tuple(groups.shape)}; [B] of {tuple(mask.shape)}")
        per_token = advantages if advantages.dim() == 2 else advantages[:, None].expand(mask.shape)
        signals = self.prepare(
            Layout.from_mask(mask, groups),
            per_token[mask].detach(),
            old_logprobs=old_logprobs[mask].detach(),
            rollout_logprobs=None if rollout_logprobs is None else rollout_logprobs[mask].detach(),
            ref_logprobs=None if ref_logprobs is None else ref_logprobs[mask].detach(),
        )
        loss = self.loss(logprobs[mask], signals, state or self.initial_state())
        return Objective(loss.value.to(precise(logprobs)), loss.metrics.means())


def _measure(logprobs: Tensor, log_ratio: Tensor, gated: Gated, signals: Signals) -> Metrics:
    """Sums with their denominators, over the tokens of a slice."""
    count = logprobs.new_tensor(float(logprobs.numel()))
    moved = token_log_ratio(logprobs, signals)
    ratio = log_ratio.exp()
    sums = {
        "approx_kl": (k3(torch.zeros_like(moved), moved).sum(), count),  # r - 1 - log r: tokens are π_old's
        "ratio/mean": (ratio.sum(), count),
        "clip_ratio/low_mean": (gated.low.sum(), count),
        "clip_ratio/high_mean": (gated.high.sum(), count),
        "clip_ratio/region_mean": ((gated.low | gated.high).sum(), count),
    }
    maxima = {"ratio/max": ratio.max()} if ratio.numel() else {}
    if signals.ref_logprobs is not None:
        sums["kl"] = (k3(logprobs, signals.ref_logprobs).sum(), count)
    old = logprobs if signals.old_logprobs is None else signals.old_logprobs
    if signals.rollout_logprobs is not None:
        difference = old - signals.rollout_logprobs
        importance = exponent(difference).exp()
        sums["sampling/logprob_difference/mean"] = (difference.abs().sum(), count)
        sums["sampling/importance_ratio/mean"] = (importance.sum(), count)
        if difference.numel():
            maxima["sampling/logprob_difference/max"] = difference.abs().max()
            maxima["sampling/importance_ratio/max"] = importance.max()
    return Metrics(sums, maxima)
