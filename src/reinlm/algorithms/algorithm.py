"""One update, five choices: how the choices meet the data.

feedback -> charge (KL in the reward) -> advantage (whole batch) -> prepare (one optimizer step) -> loss (a slice of it)
-> advance (after the batch)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from reinlm.algorithms.compatibility import refuse_contradictions
from reinlm.algorithms.filters import GroupFilter
from reinlm.algorithms.measure import measure_policy, measure_values
from reinlm.algorithms.shapers import Shaper
from reinlm.objectives import (
    KL,
    Advantage,
    Aggregation,
    Correction,
    Counts,
    Critic,
    EntropyBonus,
    Feedback,
    Gate,
    Layout,
    Loss,
    Measured,
    OffPolicyMask,
    Ratio,
    Selection,
    Signals,
    correct,
    value_loss,
)
from reinlm.objectives.ratios import precise

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

KEEP, BEFORE, AFTER = "keep", "filter_before_baseline", "filter_after_baseline"
OVERLONG = (KEEP, BEFORE, AFTER)
"""What becomes of answers that a limit cut off."""


@dataclass(frozen=True)
class AlgorithmState:
    """What moves while an algorithm runs; the checkpoint holds it."""

    updates: int = 0
    """Optimizer steps of the policy: its version."""
    batches: int = 0
    """Collected batches."""
    kl_coefficients: tuple[float, ...] = ()
    """Of each tie in `Algorithm.ties`."""
    entropy_coefficient: float = 0.0
    entropy_counts: bool = True
    """Whether the entropy bonus counts in this batch."""


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
    kl: KL | tuple[KL, ...] | None = None
    """What ties the policy to its reference or to its old weights; several with different anchors."""
    corrections: tuple[Correction, ...] = ()
    """Weights for samples that the trainer's own policy would have drawn otherwise, one after the other."""
    sequence_mask: OffPolicyMask | None = None
    """Drops punished sequences that the policy has left behind."""
    selection: Selection | None = None
    """Tokens whose covariance with the advantage is treated apart."""
    entropy: EntropyBonus | None = None
    critic: Critic | None = None
    """How a critic learns; there is one exactly where the advantage needs it."""
    overlong: str = KEEP
    """Answers that a limit cut off: "keep" them; "filter_before_baseline": they are in no statistic and no loss;
    "filter_after_baseline": their rewards still shape the baseline, their tokens are in no loss."""
    shapers: tuple[Shaper, ...] = ()
    """Added to the rewards before the advantage."""
    filters: tuple[GroupFilter, ...] = ()
    """Which groups are trained on; dropped ones are sampled anew."""
    source: str = ""
    """Paper and arXiv id."""
    base: str = ""
    """The named algorithm that a renamed one changes; empty where `name` is its own."""

    def __post_init__(self) -> None:
        if self.overlong not in OVERLONG:
            raise ValueError(f"overlong is one of {', '.join(OVERLONG)}, not {self.overlong!r}")
        refuse_contradictions(self)

    # ------------------------------------------------------------------------------------------ what it needs

    @property
    def ties(self) -> tuple[KL, ...]:
        """Every KL that can count."""
        given = self.kl if isinstance(self.kl, tuple) else () if self.kl is None else (self.kl,)
        return tuple(kl for kl in given if kl.active)

    @property
    def needs_reference(self) -> bool:
        """Whether a reference model has to be kept."""
        return any(kl.anchor == "reference" for kl in self.ties)

    @property
    def needs_ref_logprobs(self) -> bool:
        """Whether the reference's log-probabilities of the samples are needed, and not its whole distribution alone."""
        return any(kl.anchor == "reference" and kl.estimator != "full" for kl in self.ties)

    @property
    def needs_full_kl(self) -> bool:
        """Whether the loss needs the divergence over the whole vocabulary."""
        return any(kl.estimator == "full" for kl in self.ties)

    @property
    def needs_old_logprobs(self) -> bool:
        """Whether old log-probabilities are needed even where an update is a single step, so that they are the current ones."""
        by_batch = any(not kl.in_loss or (kl.controller and kl.anchor == "reference") for kl in self.ties)
        return bool(by_batch or self.corrections or self.selection or "importance" in self.advantage.needs)

    @property
    def needs_final_logprobs(self) -> bool:
        """Whether the divergence from the old policy is measured again once an update is done."""
        return any(kl.anchor == "old" and kl.controller and kl.controller.needs_kl for kl in self.ties)

    # ------------------------------------------------------------------------------------------ before an update

    def initial_state(self) -> AlgorithmState:
        return AlgorithmState(
            kl_coefficients=tuple(kl.coefficient for kl in self.ties),
            entropy_coefficient=self.entropy.coefficient if self.entropy else 0.0,
        )

    def charge(
        self,
        feedback: Feedback,
        state: AlgorithmState,
        old_logprobs: Float[Tensor, " tokens"] | None,
        ref_logprobs: Float[Tensor, " tokens"] | None,
    ) -> Feedback:
        """The feedback with every KL that is placed in the reward taken off it, and without answers filtered beforehand.

        Raises ValueError where the log-probabilities that a KL needs are missing.
        """
        if self.overlong == BEFORE and feedback.truncated is not None:
            feedback = feedback.without(feedback.truncated)
        for kl, coefficient in zip(self.ties, state.kl_coefficients, strict=True):
            if kl.in_loss:
                continue
            if old_logprobs is None or ref_logprobs is None:
                raise ValueError(f"{self.name} has a KL in its reward: old_logprobs and ref_logprobs are needed")
            charged = -coefficient * kl.reward(old_logprobs.double(), ref_logprobs.double())
            if kl.placement == "sequence_reward":
                feedback = replace(feedback, rewards=feedback.rewards + feedback.layout.sum(charged, "episode"))
            else:
                before = 0.0 if feedback.token_rewards is None else feedback.token_rewards
                feedback = replace(feedback, token_rewards=before + charged)
        return feedback

    def trained(self, feedback: Feedback) -> Bool[Tensor, " episodes"]:
        """Which episodes reach the loss: those with a reward, and with `overlong` filtering those that ended."""
        kept = ~feedback.rewards.isnan()
        if self.overlong != KEEP and feedback.truncated is not None:
            kept = kept & ~feedback.truncated
        return kept

    def prepare(
        self,
        layout: Layout,
        advantages: Float[Tensor, " tokens"],
        *,
        old_logprobs: Float[Tensor, " tokens"] | None = None,
        rollout_logprobs: Float[Tensor, " tokens"] | None = None,
        ref_logprobs: Float[Tensor, " tokens"] | None = None,
        returns: Float[Tensor, " tokens"] | None = None,
        old_values: Float[Tensor, " tokens"] | None = None,
        counts: Counts | None = None,
        seed: int = 0,
    ) -> Signals:
        """What one optimizer step needs, computed once and without gradient.

        `counts` are those of the whole step over all ranks; by default those of `layout`. `seed` decides selections that
        are drawn. Raises ValueError where log-probabilities that the algorithm needs are missing, or where any tensor
        carries a gradient.
        """
        if ref_logprobs is None and any(
            kl.in_loss and kl.anchor == "reference" and kl.estimator != "full" for kl in self.ties
        ):
            raise ValueError(f"{self.name} ties the policy to a reference: ref_logprobs is missing (or take kl=None)")
        if rollout_logprobs is None and (self.corrections or self.ratio.against == "rollout"):
            raise ValueError(f"{self.name} corrects for the sampler: rollout_logprobs is missing")
        if old_logprobs is None and (self.corrections or self.selection):
            raise ValueError(f"{self.name} weighs or selects tokens by old_logprobs, which are missing")
        counts = Counts.of(layout) if counts is None else counts
        signals = Signals(
            layout=layout,
            advantages=advantages,
            weights=self.weights(layout, counts),
            old_logprobs=old_logprobs,
            rollout_logprobs=rollout_logprobs,
            ref_logprobs=ref_logprobs,
            returns=returns,
            old_values=old_values,
        )
        if self.corrections and old_logprobs is not None and rollout_logprobs is not None:
            signals = replace(signals, correction=correct(self.corrections, old_logprobs, rollout_logprobs, layout))
        elif self.ratio.against == "rollout" and rollout_logprobs is not None and not rollout_logprobs.isfinite().all():
            signals = replace(signals, correction=correct((), advantages, rollout_logprobs, layout))
        if self.selection is not None and old_logprobs is not None:
            signals = replace(signals, selected=self.selection.select(old_logprobs, advantages, seed))
        return signals

    # ------------------------------------------------------------------------------------------ the update

    def loss(
        self,
        logprobs: Float[Tensor, " tokens"],
        signals: Signals,
        state: AlgorithmState,
        *,
        entropy: Float[Tensor, " tokens"] | None = None,
        full_kl: Float[Tensor, " tokens"] | None = None,
    ) -> Loss:
        """The policy's loss of a slice of one optimizer step; slices add up.

        Gradients flow through `logprobs`, `entropy` and `full_kl` alone. Raises ValueError where an entropy bonus, or a KL
        over the full distribution, finds none.
        """
        logprobs = logprobs.to(precise(logprobs))
        log_ratio = self.ratio(logprobs, signals)
        gated = self.gate(log_ratio, logprobs, signals)
        losses, counted = gated.losses, None
        if self.selection is not None:
            losses = self.selection.apply(losses, logprobs, signals)
        if self.sequence_mask is not None:
            counted = self.sequence_mask(logprobs, signals)
            losses = torch.where(counted, losses, 0.0)
        if signals.correction is not None:
            losses = losses * signals.correction
        for kl, coefficient in zip(self.ties, state.kl_coefficients, strict=True):
            if kl.in_loss:
                losses = losses + coefficient * kl(logprobs, signals, full_kl, self.ratio.against)
        if self.entropy is not None:
            if entropy is None:
                raise ValueError(f"{self.name} has an entropy bonus: the entropy of each token is missing")
            if state.entropy_counts:
                losses = losses - state.entropy_coefficient * entropy
        value = (signals.weights * losses).sum()
        with torch.no_grad():
            return Loss(value, measure_policy(logprobs.detach(), log_ratio.detach(), gated, counted, signals))

    def critic_loss(self, values: Float[Tensor, " tokens"], signals: Signals) -> Loss:
        """The critic's loss of a slice of one optimizer step. Raises ValueError without a critic, or without its targets."""
        if self.critic is None or signals.returns is None:
            raise ValueError(f"{self.name} has no critic, or no returns for it to learn")
        values = values.to(precise(values))
        losses = value_loss(values, signals.returns, signals.old_values, self.critic.clip)
        value = self.critic.coefficient * (signals.weights * losses).sum()
        with torch.no_grad():
            return Loss(value, measure_values(values.detach(), losses.detach(), self.critic.clip, signals))

    # ------------------------------------------------------------------------------------------ after a batch

    def advance(
        self,
        state: AlgorithmState,
        *,
        updates: int = 1,
        episodes: int = 0,
        kl: Sequence[tuple[float, float]] = (),
        entropy: float | None = None,
    ) -> AlgorithmState:
        """The state after a batch, from detached measurements.

        `kl` holds for each tie its measured divergence in nats, per token and per sequence (0 where its controller does not
        look); `entropy` is the mean over the tokens of the batch.
        """
        batches = state.batches + 1
        coefficients = list(state.kl_coefficients)
        for index, tie in enumerate(self.ties):
            if tie.controller is not None:
                per_token, per_sequence = kl[index] if kl else (0.0, 0.0)
                if tie.controller.needs_kl and not kl:
                    raise ValueError(f"{self.name} adapts its KL coefficient: the measured divergence is missing")
                measured = Measured(per_token, per_sequence, episodes, batches)
                coefficients[index] = tie.controller(tie.coefficient, coefficients[index], measured)
        bonus, counts = state.entropy_coefficient, state.entropy_counts
        if self.entropy is not None and entropy is not None:
            bonus, counts = self.entropy.advance(bonus, entropy)
        return AlgorithmState(state.updates + updates, batches, tuple(coefficients), bonus, counts)

    # ------------------------------------------------------------------------------------------ the padded adapter

    def objective(
        self,
        logprobs: Float[Tensor, " rows columns"],
        old_logprobs: Float[Tensor, " rows columns"],
        advantages: Float[Tensor, " rows columns"] | Float[Tensor, " rows"],
        mask: Bool[Tensor, " rows columns"],
        *,
        ref_logprobs: Float[Tensor, " rows columns"] | None = None,
        rollout_logprobs: Float[Tensor, " rows columns"] | None = None,
        groups: Int[Tensor, " rows"] | None = None,
        entropy: Float[Tensor, " rows columns"] | None = None,
        full_kl: Float[Tensor, " rows columns"] | None = None,
        values: Float[Tensor, " rows columns"] | None = None,
        old_values: Float[Tensor, " rows columns"] | None = None,
        returns: Float[Tensor, " rows columns"] | None = None,
        state: AlgorithmState | None = None,
        seed: int = 0,
    ) -> Objective:
        """The padded adapter: tensors [B, T] with a mask that is True on tokens that the policy chose.

        What stands at masked positions, infinity and NaN included, changes nothing. `advantages` is [B, T] or [B];
        `groups` numbers the prompt of each row (for prompt means). With `values` (and their `returns`) the critic's loss is
        added. Raises ValueError for shapes that do not agree.
        """
        mask = mask.bool()
        constants: dict[str, Any] = {
            "old_logprobs": old_logprobs,
            "ref_logprobs": ref_logprobs,
            "rollout_logprobs": rollout_logprobs,
            "old_values": old_values,
            "returns": returns,
        }
        trained = {"logprobs": logprobs, "entropy": entropy, "full_kl": full_kl, "values": values}
        _check_shapes(mask, advantages, groups, trained | constants)
        flat = {name: None if x is None else x[mask] for name, x in trained.items()}
        per_token = advantages if advantages.dim() == 2 else advantages[:, None].expand(mask.shape)
        signals = self.prepare(
            Layout.from_mask(mask, groups),
            per_token[mask].detach(),
            **{name: None if x is None else x[mask].detach() for name, x in constants.items()},
            seed=seed,
        )
        chosen = logprobs[mask]
        loss = self.loss(
            chosen, signals, state or self.initial_state(), entropy=flat["entropy"], full_kl=flat["full_kl"]
        )
        value, metrics = loss.value, loss.metrics.means()
        if flat["values"] is not None:
            critic = self.critic_loss(flat["values"], signals)
            value, metrics = value + critic.value, metrics | critic.metrics.means()
        return Objective(value.to(precise(logprobs)), metrics)


def _check_shapes(mask: Tensor, advantages: Tensor, groups: Tensor | None, given: Mapping[str, Tensor | None]) -> None:
    for name, x in given.items():
        if x is not None and x.shape != mask.shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, the mask {tuple(mask.shape)}; both are [B, T]")
    if advantages.shape not in {mask.shape, mask.shape[:1]}:
        raise ValueError(f"advantages has shape {tuple(advantages.shape)}; [B] or [B, T] of {tuple(mask.shape)}")
    if groups is not None and groups.shape != mask.shape[:1]:
        raise ValueError(f"groups has shape {tuple(groups.shape)}; [B] of {tuple(mask.shape)}")
