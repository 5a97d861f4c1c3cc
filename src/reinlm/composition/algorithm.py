"""`Algorithm`: computes rewards, advantages, loss and state of an update from the five choices.

The trainer calls, in this order:

    adjust_rewards    whole batch: constraints, KL in the reward, overlong filter
    advantage         whole batch
    prepare           one optimizer step: weights, corrections, selections
    loss              one micro-batch of whole sequences
    advance           after the batch: adaptive coefficients
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from reinlm.composition.composition import BEFORE, KEEP, KNOWN, OVERLONG, Composition, Updates
from reinlm.composition.measure import measure_policy, measure_values, token_quantities
from reinlm.composition.terms import term_losses, term_needs
from reinlm.display import html_table, text_table
from reinlm.errors import InputError
from reinlm.objectives import (
    Counts,
    Feedback,
    KLTerm,
    Layout,
    Loss,
    LossTerm,
    Measured,
    PolicyDistribution,
    Signals,
    correct,
    penalize,
    value_loss,
)
from reinlm.objectives.earlier import earlier_names
from reinlm.objectives.kl import FULL
from reinlm.objectives.ratios import precise
from reinlm.renamed import RenamedAttribute

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped

__all__ = ["OVERLONG", "Algorithm", "AlgorithmState", "Objective", "Updates"]


@dataclass(frozen=True)
class AlgorithmState:
    """The state of an algorithm during a run: counters and adaptive coefficients. Checkpoints store it."""

    updates: int = 0
    """Optimizer steps of the policy so far."""
    batches: int = 0
    """Batches collected so far."""
    kl_coefficients: tuple[float, ...] = ()
    """The current coefficient of each KL in `Algorithm.active_kl`."""
    entropy_coefficient: float = 0.0
    entropy_counts: bool = True
    """Whether the entropy bonus counts in this batch."""
    multipliers: tuple[float, ...] = ()
    """The current Lagrange multiplier of each constraint in `Algorithm.constraints`."""


@dataclass(frozen=True)
class Objective:
    """The result of `Algorithm.objective`: the loss and its metrics."""

    loss: Float[Tensor, ""]
    metrics: Mapping[str, float] = field(default_factory=dict)


@earlier_names
@dataclass(frozen=True)
class Algorithm(Composition):
    """loss = Σ_t w_t · ( gate(ratio_t, advantage_t) + β · KL_t ), with each choice a value that can be swapped.

    Frozen: changing values are in `AlgorithmState`. Raises ValueError for choices that contradict one another.
    """

    # ------------------------------------------------------------------------------------------ before an update

    def __str__(self) -> str:
        """The choices as a small table; `repr` shows every value."""
        from reinlm.composition.document import choice_rows

        return "\n".join([self.name, text_table(choice_rows(self))])

    def _repr_html_(self) -> str:
        from reinlm.composition.document import choice_rows

        return html_table([("choice", self.name), *choice_rows(self)])

    def initial_state(self) -> AlgorithmState:
        return AlgorithmState(
            kl_coefficients=tuple(kl.coefficient for kl in self.active_kl),
            entropy_coefficient=self.entropy.coefficient if self.entropy else 0.0,
            multipliers=tuple(constraint.multiplier for constraint in self.constraints),
        )

    charge = RenamedAttribute("adjust_rewards")

    def adjust_rewards(
        self,
        feedback: Feedback,
        state: AlgorithmState,
        old_logprobs: Float[Tensor, " tokens"] | None,
        ref_logprobs: Float[Tensor, " tokens"] | None,
        full_kl: Float[Tensor, " tokens"] | None = None,
    ) -> Feedback:
        """Subtract constraint costs and every KL in the reward, and apply the filter `filter_before_baseline`.

        Returns the feedback with `adjusted_rewards` and its kin set; the earned rewards stay unchanged.

        `full_kl` is the divergence of the policy from its reference over the vocabulary at the state of each token, measured
        before the first update (`needs_full_kl_in_reward`), in the direction that `full_directions` gives.

        Raises ValueError where the log-probabilities or the divergence that a KL needs, or a constraint's reward, are missing.
        """
        if self.overlong == BEFORE and feedback.truncated is not None:
            feedback = feedback.without(feedback.truncated)
        if "teacher" in self.advantage.needs and old_logprobs is not None:
            feedback = replace(feedback, old_logprobs=old_logprobs.double())
        feedback = self._constrain(feedback, state)
        for kl, coefficient in zip(self.active_kl, state.kl_coefficients, strict=True):
            if kl.in_loss:
                continue
            if kl.estimator == "full":
                if full_kl is None:
                    raise ValueError(f"{self.name} has a full KL in its reward: full_kl is needed")
                estimate = full_kl.detach().double()
            else:
                if old_logprobs is None or ref_logprobs is None:
                    raise ValueError(f"{self.name} has a KL in its reward: old_logprobs and ref_logprobs are needed")
                estimate = kl.reward(old_logprobs.double(), ref_logprobs.double())
            charged = -coefficient * estimate
            if kl.placement == "sequence_reward":
                summed = feedback.layout.sum(charged, "episode")
                feedback = replace(feedback, adjusted_rewards=feedback.effective_rewards + summed)
            else:
                before = 0.0 if feedback.token_rewards is None else feedback.token_rewards
                feedback = replace(feedback, token_rewards=before + charged)
        return feedback

    def _constrain(self, feedback: Feedback, state: AlgorithmState) -> Feedback:
        """Subtract the costs. Process rewards are divided by the same factor as outcomes, which keeps their proportion."""
        if not self.constraints:
            return feedback
        try:
            costs = [feedback.named(constraint.reward, "a constraint") for constraint in self.constraints]
        except ValueError as error:
            raise InputError(f"{self.name}: {error}") from error
        steps = feedback.effective_step_rewards
        return replace(
            feedback,
            adjusted_rewards=penalize(feedback.effective_rewards, costs, state.multipliers),
            adjusted_step_rewards=None if steps is None else steps / (1.0 + sum(state.multipliers)),
            adjusted_step_tokens=feedback.effective_step_tokens,
        )

    def trained(self, feedback: Feedback) -> Bool[Tensor, " episodes"]:
        """[E] bool: the episodes in the loss: those with a reward that the advantage accepts and, with `overlong` filtering, not
        truncated."""
        kept = ~feedback.effective_rewards.isnan() & self.advantage.trained(feedback)
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
        teacher_logprobs: Float[Tensor, " tokens"] | None = None,
        returns: Float[Tensor, " tokens"] | None = None,
        old_values: Float[Tensor, " tokens"] | None = None,
        columns: Mapping[str, Shaped[Tensor, " tokens"]] | None = None,
        counts: Counts | None = None,
        seed: int = 0,
    ) -> Signals:
        """Compute the constants of one optimizer step, without gradient.

        `counts` are those of the whole step over all ranks; by default those of `layout`. `seed` seeds random selections.
        `columns` are further per-token constants for loss terms. Raises ValueError where log-probabilities or
        columns that the algorithm needs are missing, or where any tensor carries a gradient.
        """
        given = {
            "old_logprobs": old_logprobs,
            "rollout_logprobs": rollout_logprobs,
            "ref_logprobs": ref_logprobs,
            "teacher_logprobs": teacher_logprobs,
        }
        self._check_given(given, columns or {})
        counts = Counts.of(layout) if counts is None else counts
        signals = Signals(
            layout=layout,
            advantages=advantages,
            weights=self.aggregation(layout, counts),
            returns=returns,
            old_values=old_values,
            columns=columns or {},
            **given,
        )
        if self.corrections and old_logprobs is not None and rollout_logprobs is not None:
            signals = replace(signals, correction=correct(self.corrections, old_logprobs, rollout_logprobs, layout))
        elif self.ratio.against == "rollout" and rollout_logprobs is not None and not rollout_logprobs.isfinite().all():
            signals = replace(signals, correction=correct((), advantages, rollout_logprobs, layout))
        if self.selection is not None and old_logprobs is not None:
            signals = replace(signals, selected=self.selection.select(old_logprobs, advantages, seed))
        return signals

    def _check_given(self, given: Mapping[str, Tensor | None], columns: Mapping[str, Tensor]) -> None:
        def missing(name: str) -> bool:
            return given[name] is None

        if missing("ref_logprobs") and any(
            "ref_logprobs" in KLTerm(kl, 1.0).needs for kl in self.active_kl if kl.in_loss
        ):
            raise ValueError(f"{self.name} ties the policy to a reference: ref_logprobs is missing (or take kl=None)")
        if missing("rollout_logprobs") and (self.corrections or self.ratio.against == "rollout"):
            raise ValueError(f"{self.name} corrects for the sampler: rollout_logprobs is missing")
        if missing("old_logprobs") and (self.corrections or self.selection):
            raise ValueError(f"{self.name} weighs or selects tokens by old_logprobs, which are missing")
        wanted = {name for name in KNOWN if name in self._needed_by_terms and missing(name)}
        if absent := sorted(wanted | (self.needs_columns - set(columns))):
            raise ValueError(f"{self.name} has a loss term that reads {', '.join(absent)}: missing")

    # ------------------------------------------------------------------------------------------ the update

    def loss(
        self,
        logprobs: Float[Tensor, " tokens"],
        signals: Signals,
        state: AlgorithmState,
        *,
        entropy: Float[Tensor, " tokens"] | None = None,
        full_kl: Float[Tensor, " tokens"] | None = None,
        full_old_kl: Float[Tensor, " tokens"] | None = None,
        full_teacher_kl: Float[Tensor, " tokens"] | None = None,
    ) -> Loss:
        """The policy's loss of a slice of one optimizer step; slices add up.

        Only `logprobs` and the fields of `reinlm.objectives.PolicyDistribution` carry gradients. Raises
        ValueError where a measurement that an entropy bonus, a full KL or a loss term needs is missing.
        """
        full = {"reference": full_kl, "old": full_old_kl, "teacher": full_teacher_kl}
        distribution = PolicyDistribution(entropy, {anchor: x for anchor, x in full.items() if x is not None})
        terms = self.terms_in_force(state)
        self._check_distribution(distribution, terms)
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
        for term in terms:
            losses = losses + term_losses(term, logprobs, signals, distribution)
        value = (signals.weights * losses).sum()
        with torch.no_grad():
            found = (logprobs.detach(), log_ratio.detach(), gated, counted, signals)
            return Loss(value, measure_policy(*found), token_quantities(*found))

    def _check_distribution(self, distribution: PolicyDistribution, terms: Sequence[LossTerm]) -> None:
        if distribution.entropy is None and "entropy" in term_needs(terms):
            what = "an entropy bonus" if self.entropy is not None else "a loss term that reads entropy"
            raise ValueError(f"{self.name} has {what}: the entropy of each token is missing")
        for kl in self.active_kl:
            if kl.in_loss and kl.estimator == "full" and kl.anchor not in distribution.full_kl:
                raise ValueError(f"{self.name} has a KL over the full distribution: {FULL[kl.anchor]}")

    def terms_in_force(self, state: AlgorithmState) -> tuple[LossTerm, ...]:
        """The loss terms with the coefficients of `state`; the entropy bonus only where the state enables it."""
        return self.loss_terms(state.kl_coefficients, state.entropy_coefficient if state.entropy_counts else None)

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
        costs: Mapping[str, float] | None = None,
    ) -> AlgorithmState:
        """The state after a batch, from detached measurements.

        `kl` holds for each tie its measured divergence in nats, per token and per sequence (0 where its controller does not
        read it); `entropy` is the mean over the tokens of the batch. `costs` holds the mean outcome of each named reward over the
        answers of the batch that have one; a constraint whose reward no answer got keeps its multiplier.
        """
        batches = state.batches + 1
        coefficients = list(state.kl_coefficients)
        for index, tie in enumerate(self.active_kl):
            if tie.controller is not None:
                per_token, per_sequence = kl[index] if kl else (0.0, 0.0)
                if tie.controller.needs_kl and not kl:
                    raise ValueError(f"{self.name} adapts its KL coefficient: the measured divergence is missing")
                measured = Measured(per_token, per_sequence, episodes, batches)
                coefficients[index] = tie.controller(tie.coefficient, coefficients[index], measured)
        bonus, counts = state.entropy_coefficient, state.entropy_counts
        if self.entropy is not None and entropy is not None:
            bonus, counts = self.entropy.advance(bonus, entropy)
        if self.constraints and costs is None:
            raise ValueError(f"{self.name} has a constraint: the mean costs of the batch are missing")
        multipliers = tuple(
            constraint.advance(multiplier, costs[constraint.reward])
            if costs and constraint.reward in costs
            else multiplier
            for constraint, multiplier in zip(self.constraints, state.multipliers, strict=True)
        )
        return AlgorithmState(state.updates + updates, batches, tuple(coefficients), bonus, counts, multipliers)

    def state_metrics(self, state: AlgorithmState) -> dict[str, float]:
        """Metrics of the state before a batch: the multiplier of each constraint."""
        pairs = zip(self.constraints, state.multipliers, strict=True)
        return {f"constraint/{constraint.reward}/multiplier": multiplier for constraint, multiplier in pairs}

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
        teacher_logprobs: Float[Tensor, " rows columns"] | None = None,
        groups: Int[Tensor, " rows"] | None = None,
        entropy: Float[Tensor, " rows columns"] | None = None,
        full_kl: Float[Tensor, " rows columns"] | None = None,
        full_old_kl: Float[Tensor, " rows columns"] | None = None,
        full_teacher_kl: Float[Tensor, " rows columns"] | None = None,
        columns: Mapping[str, Shaped[Tensor, " rows columns"]] | None = None,
        values: Float[Tensor, " rows columns"] | None = None,
        old_values: Float[Tensor, " rows columns"] | None = None,
        returns: Float[Tensor, " rows columns"] | None = None,
        state: AlgorithmState | None = None,
        seed: int = 0,
    ) -> Objective:
        """The padded adapter: tensors [B, T] with a mask that is True on tokens that the policy chose.

        Values at masked positions, infinity and NaN included, have no effect. `advantages` is [B, T] or [B];
        `groups` numbers the prompt of each row (for prompt means). With `values` (and their `returns`) the critic's loss is
        added. Raises ValueError for shapes that do not agree.
        """
        mask = mask.bool()
        constants: dict[str, Any] = {
            "old_logprobs": old_logprobs,
            "ref_logprobs": ref_logprobs,
            "rollout_logprobs": rollout_logprobs,
            "teacher_logprobs": teacher_logprobs,
            "old_values": old_values,
            "returns": returns,
        }
        outputs = {
            "entropy": entropy,
            "full_kl": full_kl,
            "full_old_kl": full_old_kl,
            "full_teacher_kl": full_teacher_kl,
        }
        named = dict(columns or {})
        _check_shapes(mask, advantages, groups, {"logprobs": logprobs, "values": values} | outputs | constants | named)
        per_token = advantages if advantages.dim() == 2 else advantages[:, None].expand(mask.shape)
        signals = self.prepare(
            Layout.from_mask(mask, groups),
            per_token[mask].detach(),
            **{name: None if x is None else x[mask].detach() for name, x in constants.items()},
            columns={name: x[mask].detach() for name, x in named.items()},
            seed=seed,
        )
        flat = {name: None if x is None else x[mask] for name, x in outputs.items()}
        loss = self.loss(logprobs[mask], signals, state or self.initial_state(), **flat)
        value, metrics = loss.value, loss.metrics.means()
        if values is not None:
            critic = self.critic_loss(values[mask], signals)
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
