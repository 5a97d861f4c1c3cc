"""All updates of one collected batch: passes over minibatches, then adaptive coefficients and learning rate."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from reinlm.algorithms import Algorithm, AlgorithmState
from reinlm.batches import TokenBatch
from reinlm.composition.terms import term_needs
from reinlm.models import VALUES, Anchor, Outputs, Want
from reinlm.objectives import KL, Feedback, Loss, Metrics, Signals, correct, effective_sample_size, k3
from reinlm.runs import MetricSums
from reinlm.training.anchors import Anchors, OldPolicy
from reinlm.training.critic import CriticModel
from reinlm.training.learner import Learner, LossFunction, MicroBatch
from reinlm.training.preparation import (
    FULL_KL_COLUMNS,
    FULL_KL_METRICS,
    Prepared,
    prepare,
    prepared_metrics,
)
from reinlm.training.staleness import stale_tokens, staleness_metrics
from reinlm.training.text import TextLoss

STOP_FACTOR = 1.5
"""An update that would begin further than this times `target_kl` from the old policy is not made."""


COEFFICIENTS = {"reference": "kl/coefficient", "old": "kl/old_coefficient", "teacher": "kl/teacher_coefficient"}


@dataclass(frozen=True)
class UpdateSettings:
    """How often a collected batch is trained on.

    Example:
        UpdateSettings(minibatches=2, seed=0)
    """

    passes: int = 1
    minibatches: int = 1
    """Optimizer steps in one pass; groups are never split."""
    target_kl: float | None = None
    kl_learning_rate: float | None = None
    critic_warmup: int = 0
    """First batches in which the critic alone learns."""
    seed: int = 0


@dataclass(frozen=True)
class UpdateResult:
    """What the updates of a batch found."""

    metrics: dict[str, float]
    tokens: dict[str, Tensor] = field(default_factory=dict)
    """Per-token quantities [N] of the last update that each token was in; NaN where it was in none."""


class Updater:
    """Trains policy and critic on batches. Its state: `state` of the algorithm, and the learners."""

    def __init__(
        self,
        algorithm: Algorithm,
        learner: Learner,
        settings: UpdateSettings,
        *,
        critic: CriticModel | None = None,
        anchors: Anchors | None = None,
        text: TextLoss | None = None,
        decoupled: bool = False,
    ) -> None:
        """`decoupled` as of `reinlm.training.preparation.prepare`."""
        self.algorithm = algorithm
        self.decoupled = decoupled
        self.text = text
        self.learner = learner
        self.settings = settings
        self.critic = critic
        self._corrects_in_loss = self._old_is_current()
        self.anchors: dict[str, Anchor] = {} if anchors is None else anchors.by_name
        self._old = OldPolicy(learner.model) if algorithm.needs_full_old_kl else None
        if self._old is not None:
            self.anchors["old"] = self._old.anchor
        self.state: AlgorithmState = algorithm.initial_state()

    def _old_is_current(self) -> bool:
        """Whether the log-probabilities of the update's own pass are the old ones that corrections need, and nothing else does:
        the batch makes one update, and no pass before it is needed."""
        algorithm, settings = self.algorithm, self.settings
        one = self.decoupled and settings.passes * settings.minibatches == 1 and self.learner.ranks == 1
        shared = self.critic is not None and self.critic.shared
        if not (one and algorithm.corrections) or shared or algorithm.needs_full_kl_in_reward:
            return False
        own = replace(algorithm, corrections=()).needs_old_logprobs
        return not own and all(correction.by_sequence for correction in algorithm.corrections)

    @property
    def _preparing(self) -> Algorithm:
        """The algorithm up to the loss."""
        return replace(self.algorithm, corrections=()) if self._corrects_in_loss else self.algorithm

    def prepare(self, batch: TokenBatch, feedback: Feedback) -> tuple[Prepared, dict[str, float]]:
        """What has to be known of a batch before its first update, and what there is to say of it."""
        if self._old is not None:
            self._old.take(self.learner.model)
        prepared = prepare(
            batch,
            feedback,
            self._preparing,
            self.state,
            learner=self.learner,
            critic=self.critic,
            anchors=self.anchors,
            several=self.settings.passes * self.settings.minibatches > 1,
            decoupled=self.decoupled,
        )
        return prepared, prepared_metrics(prepared) | staleness_metrics(batch, self.state.updates)

    # ------------------------------------------------------------------------------------------ the updates

    def update(
        self, step: int, batch: TokenBatch, prepared: Prepared, last_checkpoint: str = "none yet"
    ) -> UpdateResult:
        """Passes of minibatches; while the critic warms up the policy does not move."""
        warming = self.state.batches < self.settings.critic_warmup
        sums = MetricSums()
        before, stopped = self.learner.version, False
        measured: dict[str, float] = {}
        tokens: dict[str, Tensor] = {}
        furthest: float | None = None
        for sequences, seed in self._minibatches(step, batch, prepared):
            part = batch.select(sequences)
            signals = self._signals(batch, prepared, sequences, seed)
            mine, found = self._backward(part, signals, warming)
            distance = mine.means().get("approx_kl", 0.0)
            stale = not self.decoupled and bool(stale_tokens(part, self.state.updates).any())
            shown = self.learner.version > before or stale
            furthest = distance if shown else None
            if self.settings.target_kl is not None and distance > STOP_FACTOR * self.settings.target_kl:
                stopped = True
                self._zero_grad()
                break
            if self.text is not None and not warming:
                mine.add("text/loss", self.text.backward(), 1)
            sums.merge(mine)
            _keep(tokens, found, batch, sequences)
            measured |= self._step(sums, warming, last_checkpoint)
        made = self.learner.version - before
        metrics = {**sums.means(), **measured, "updates/made": float(made), "updates/stopped": float(stopped)}
        return UpdateResult(metrics | self._advance(batch, prepared, metrics, made, furthest, warming), tokens)

    def _minibatches(self, step: int, batch: TokenBatch, prepared: Prepared) -> Iterator[tuple[Tensor, int]]:
        """Whole groups in a fresh order in every pass, as sequences with a seed, without answers that are not trained on."""
        layout = batch.layout
        group = layout.group_of_episode[layout.episode_of_sequence]
        usable = prepared.trained[layout.episode_of_sequence]
        for number in range(self.settings.passes):
            order = random.Random(f"{self.settings.seed}/{step}/{number}")
            groups = list(range(layout.groups))
            order.shuffle(groups)
            count = min(self.settings.minibatches, len(groups))
            for part in (torch.tensor(groups[first::count]) for first in range(count)):
                sequences = torch.nonzero(usable & torch.isin(group, part)).flatten()
                if len(sequences):
                    yield sequences, order.getrandbits(31)

    def _signals(self, batch: TokenBatch, prepared: Prepared, sequences: Tensor, seed: int) -> Signals:
        layout, tokens = batch.layout.select(sequences)

        def part(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[tokens]

        signals = self._preparing.prepare(
            layout,
            prepared.advantages[tokens],
            old_logprobs=part(prepared.old),
            rollout_logprobs=batch.columns["rollout_logprobs"][tokens],
            ref_logprobs=part(prepared.ref),
            teacher_logprobs=part(prepared.teacher),
            columns={name: batch.columns[name][tokens] for name in self.algorithm.needs_columns},
            returns=part(prepared.returns),
            old_values=part(prepared.feedback.values),
            seed=seed,
        )
        weight = part(batch.columns.get("loss_weight"))
        return signals if weight is None else replace(signals, weights=signals.weights * weight)

    def _backward(self, batch: TokenBatch, signals: Signals, warming: bool) -> tuple[MetricSums, Mapping[str, Tensor]]:
        """The gradient of one optimizer step, of policy and critic; what was measured, of the step and of its tokens."""
        sums = MetricSums()
        tokens: Mapping[str, Tensor] = {}
        weighed = [] if signals.correction is None else [signals.correction]
        shared = self.critic is not None and self.critic.shared
        if not warming or shared:
            found = self.learner.forward_backward(
                batch,
                self._policy_loss(signals, warming, shared, weighed),
                want=self._want(shared),
                anchors=self.anchors,
            )
            sums.merge(found.metrics)
            tokens = found.tokens
        if weighed:
            sums.add("correction/effective_samples", effective_sample_size(torch.cat(weighed)), batch.tokens)
        if self.critic is not None and not shared:
            found = self.critic.learner.forward_backward(batch, self._value_loss(signals), want=VALUES)
            sums.merge(found.metrics)
        return sums, tokens

    def _want(self, shared: bool) -> Want:
        algorithm = self.algorithm
        directions: Mapping[str, Any] = algorithm.full_directions
        wanted = {
            "reference": algorithm.needs_full_kl,
            "old": algorithm.needs_full_old_kl,
            "teacher": algorithm.needs_teacher_full_kl,
        }
        return Want(
            entropy="grad" if "entropy" in term_needs(algorithm.terms_in_force(self.state)) else True,
            values=shared,
            full_kl={name: directions[name] for name, needed in wanted.items() if needed},
        )

    def _policy_loss(self, signals: Signals, warming: bool, shared: bool, weighed: list[Tensor]) -> LossFunction:
        """The loss of the policy and of a critic on its backbone; while that warms up the critic's alone.

        `weighed` takes the corrections that are computed in it.
        """

        def loss(outputs: Outputs, part: MicroBatch) -> Loss:
            mine = signals.select(part.sequences).to(outputs.scored.device, outputs.scored.dtype)
            if self._corrects_in_loss and mine.rollout_logprobs is not None:
                current, drew = outputs.scored.detach(), mine.rollout_logprobs
                mine = replace(mine, correction=correct(self.algorithm.corrections, current, drew, mine.layout))
                weighed.append(cast("Tensor", mine.correction))
            full = outputs.full_kl
            found = self.algorithm.loss(
                outputs.scored,
                mine,
                self.state,
                entropy=outputs.entropy,
                full_kl=full.get("reference"),
                full_old_kl=full.get("old"),
                full_teacher_kl=full.get("teacher"),
            )
            sums = dict(found.metrics.sums)
            count = torch.tensor(float(outputs.scored.numel()))
            sums["loss"] = (found.value.detach(), torch.tensor(0.0))  # parts of one sum, counted once a step
            assert outputs.entropy is not None
            sums["entropy"] = (outputs.entropy.detach().sum(), count)
            for anchor, name in FULL_KL_METRICS.items():
                if anchor in full:
                    sums[name] = (full[anchor].detach().sum(), count)
            tokens = {**found.tokens, **{FULL_KL_COLUMNS[anchor]: x.detach() for anchor, x in full.items()}}
            value, maxima = found.value, dict(found.metrics.maxima)
            if shared and outputs.values is not None:
                critic = self.algorithm.critic_loss(outputs.values, mine)
                value = critic.value if warming else value + critic.value
                sums |= critic.metrics.sums
            return Loss(value, Metrics(sums, maxima), tokens)

        return loss

    def _value_loss(self, signals: Signals) -> LossFunction:
        def loss(outputs: Outputs, part: MicroBatch) -> Loss:
            assert outputs.values is not None
            mine = signals.select(part.sequences).to(outputs.values.device, outputs.values.dtype)
            return self.algorithm.critic_loss(outputs.values, mine)

        return loss

    def _step(self, sums: MetricSums, warming: bool, last_checkpoint: str) -> dict[str, float]:
        measured: dict[str, float] = {}
        if self.critic is not None:
            mine = self.critic.learner.optim_step(last_checkpoint)
            if "grad_norm" in mine:
                sums.add("critic/grad_norm", mine["grad_norm"], 1)
            measured["critic/learning_rate"] = mine["learning_rate"]
        if warming:
            self.learner.zero_grad()
            return measured
        sums.add("loss", 0.0, 1)
        mine = self.learner.optim_step(last_checkpoint)
        if "grad_norm" in mine:
            sums.add("grad_norm", mine.pop("grad_norm"), 1)
        return measured | mine

    def _zero_grad(self) -> None:
        self.learner.zero_grad()
        if self.critic is not None:
            self.critic.learner.zero_grad()

    # ------------------------------------------------------------------------------------------ after the updates

    def _advance(
        self,
        batch: TokenBatch,
        prepared: Prepared,
        metrics: Mapping[str, float],
        made: int,
        furthest: float | None,
        warming: bool,
    ) -> dict[str, float]:
        """Move the algorithm's state and the learning rate by what was measured.

        Args:
            furthest: distance from the old policy at the last minibatch, nats per token; None where that minibatch cannot show
                any: no update came before it, and none of its tokens is of an earlier version of the policy.
        """
        found: dict[str, float] = {}
        if warming or not made:  # nothing moved, so there is nothing to adapt to
            self.state = replace(self.state, batches=self.state.batches + 1)
            return {"critic/warmup": 1.0} if warming else {}
        kls = []
        for index, tie in enumerate(self.algorithm.active_kl):
            name = COEFFICIENTS[tie.anchor]
            found[name] = self.state.kl_coefficients[index]
            per_token, per_sequence = self._divergence(batch, prepared, tie, metrics)
            if tie.controller is not None and tie.controller.needs_kl:
                found |= {f"kl/{tie.anchor}": per_token, f"kl/{tie.anchor}_per_sequence": per_sequence}
            kls.append((per_token, per_sequence))
        found |= self.algorithm.state_metrics(self.state)
        if self.algorithm.entropy is not None:
            found["entropy/coefficient"] = self.state.entropy_coefficient if self.state.entropy_counts else 0.0
        self.state = self.algorithm.advance(
            self.state,
            updates=made,
            episodes=int(prepared.trained.sum()),
            kl=kls,
            entropy=metrics.get("entropy"),
            costs=_costs(prepared.feedback),
        )
        if furthest is not None:
            self._adapt_learning_rate(furthest)
        return found

    def _adapt_learning_rate(self, furthest: float) -> None:
        target, optimizer = self.settings.kl_learning_rate, self.learner.optimizer
        if target is None or optimizer is None:
            return
        if furthest > 2.0 * target:
            optimizer.scale = max(optimizer.scale / 1.5, 0.01)
        elif furthest < target / 2.0:
            optimizer.scale = min(optimizer.scale * 1.5, 10.0)

    def _divergence(
        self, batch: TokenBatch, prepared: Prepared, tie: KL, metrics: Mapping[str, float]
    ) -> tuple[float, float]:
        """Mean per token and per answer: of the old policy from the reference or the policy from the old one, by k3.

        A full KL to the reference or a teacher is measured itself: before the updates in the reward, over them in the loss.
        """
        kept = batch.layout.expand(prepared.trained, "episode")
        count = int(prepared.trained.sum())
        if tie.estimator == "full" and tie.anchor != "old":
            mean = (metrics if tie.in_loss else prepared_metrics(prepared)).get(FULL_KL_METRICS[tie.anchor], 0.0)
            return mean, mean * int(kept.sum()) / max(count, 1)
        if tie.anchor == "reference":
            if prepared.old is None or prepared.ref is None or not count:
                return 0.0, 0.0
            estimate = k3(prepared.old, prepared.ref)[kept]
        else:
            if prepared.old is None or not self.algorithm.needs_final_logprobs or not count:
                return 0.0, 0.0
            estimate = k3(prepared.old, self.learner.forward(batch).scored)[kept]
        total = float(estimate.double().sum())
        return total / max(len(estimate), 1), total / count

    def state_dict(self) -> dict[str, Any]:
        critic = None
        if self.critic is not None:
            critic = {"weights": self.critic.model.learned(), "optimizer": self.critic.learner.state_dict()}
        return {
            "optimizer": self.learner.state_dict(),
            "algorithm": asdict(self.state),
            "critic": critic,
            "text": self.text.state_dict() if self.text else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(state["optimizer"])
        self.state = AlgorithmState(**state["algorithm"])
        if self.critic is not None:
            self.critic.model.restore(state["critic"]["weights"])
            self.critic.learner.load_state_dict(state["critic"]["optimizer"])
        if self.text is not None:
            self.text.load_state_dict(state["text"])


def _costs(feedback: Feedback) -> dict[str, float]:
    """The mean outcome of every named reward over the answers that have one."""
    named = {name: values[~values.isnan()] for name, values in (feedback.effective_named_rewards or {}).items()}
    return {name: float(values.mean()) for name, values in named.items() if len(values)}


def _keep(tokens: dict[str, Tensor], found: Mapping[str, Tensor], batch: TokenBatch, sequences: Tensor) -> None:
    """Put the quantities of one optimizer step where its tokens stand in the batch; later steps replace earlier ones."""
    _, places = batch.layout.select(sequences)
    for name, values in found.items():
        tokens.setdefault(name, torch.full((batch.tokens,), torch.nan))[places] = values.float()
