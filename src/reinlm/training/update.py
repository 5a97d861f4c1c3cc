"""All updates of one collected batch: old, reference and values, advantages, then passes of minibatches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from reinlm.algorithms import Algorithm, AlgorithmState
from reinlm.batches import TokenBatch
from reinlm.errors import InputError
from reinlm.models import VALUES, Anchor, Outputs, TokenModel, Want, same_model
from reinlm.objectives import KL, Feedback, Loss, Metrics, Signals, effective_sample_size, explained_variance, k3
from reinlm.records import UNKNOWN_VERSION
from reinlm.runs import MetricSums
from reinlm.training.anchors import Anchors
from reinlm.training.critic import Critic
from reinlm.training.learner import Learner, LossFunction, MicroBatch
from reinlm.training.text import TextLoss

STOP_FACTOR = 1.5
"""An update that would begin further than this times `target_kl` from the old policy is not made."""


COEFFICIENTS = {"reference": "kl/coefficient", "old": "kl/old_coefficient", "teacher": "kl/teacher_coefficient"}
FULL_KL_METRICS = {"reference": "kl/full", "old": "kl/old_full", "teacher": "kl/teacher"}


class OldPolicy:
    """The policy as it was before a batch's first update, as an anchor for divergences over the whole vocabulary."""

    def __init__(self, model: TokenModel) -> None:
        if hasattr(model.lm, "disable_adapter"):
            raise InputError(
                "a full KL to the old policy keeps a second copy of the policy, which an adapter does not have",
                hint="take estimator=k3, or train without an adapter",
            )
        frozen = TokenModel(same_model(model.lm), packing=model.packing, chunk_tokens=model.chunk_tokens)
        self.anchor = Anchor(frozen)

    @torch.no_grad()
    def take(self, model: TokenModel) -> None:
        """Take the weights as they are now."""
        for kept, current in zip(self.anchor.model.lm.parameters(), model.lm.parameters(), strict=True):
            kept.copy_(current)


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
class Prepared:
    """What is known of a batch before its first update; all on the CPU, none with a gradient."""

    feedback: Feedback
    advantages: Tensor
    old: Tensor | None
    ref: Tensor | None
    teacher: Tensor | None
    full: Tensor | None
    """Divergence from the reference over the vocabulary, where it is charged to the reward."""
    returns: Tensor | None
    trained: Tensor
    """Which episodes reach the loss."""


@dataclass(frozen=True)
class Updated:
    """What the updates of a batch found."""

    metrics: dict[str, float]
    tokens: dict[str, Tensor] = field(default_factory=dict)
    """Per-token quantities [N] of the last update that each token was in; NaN where it was in none."""


class Updater:
    """Trains policy and critic on batches. What moves: `state`, the learners."""

    def __init__(
        self,
        algorithm: Algorithm,
        learner: Learner,
        settings: UpdateSettings,
        *,
        critic: Critic | None = None,
        anchors: Anchors | None = None,
        text: TextLoss | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.text = text
        self.learner = learner
        self.settings = settings
        self.critic = critic
        self.anchors: dict[str, Anchor] = {} if anchors is None else anchors.by_name
        self._old = OldPolicy(learner.model) if algorithm.needs_full_old_kl else None
        if self._old is not None:
            self.anchors["old"] = self._old.anchor
        self.state: AlgorithmState = algorithm.initial_state()

    # ------------------------------------------------------------------------------------------ before the updates

    def prepare(self, batch: TokenBatch, feedback: Feedback) -> tuple[Prepared, dict[str, float]]:
        """Log-probabilities, values and advantages of a batch.

        Tokens of an earlier version of the policy have the sampler's log-probabilities as their old ones, so that their
        ratios hold what has happened since.
        """
        settings, algorithm = self.settings, self.algorithm
        if self._old is not None:
            self._old.take(self.learner.model)
        stale = self._stale(batch)
        several = settings.passes * settings.minibatches > 1
        shared = self.critic is not None and self.critic.shared
        rollout = batch.columns["rollout_logprobs"]
        old = ref = teacher = values = full = None
        in_reward = algorithm.needs_full_kl_in_reward
        if several or bool(stale.any()) or algorithm.needs_old_logprobs or shared or in_reward:
            want = Want(values=shared, full_kl=self._directions("reference") if in_reward else {})
            found = self.learner.forward(batch, want, anchors=self.anchors)
            old, values = torch.where(stale, rollout.to(found.scored.dtype), found.scored), found.values
            full = found.full_kl.get("reference")
        if algorithm.needs_ref_logprobs:
            ref = self.learner.forward(batch, anchor=self.anchors["reference"]).scored
        if algorithm.needs_teacher_logprobs:
            teacher = self.learner.forward(batch, anchor=self.anchors["teacher"]).scored
            feedback = replace(feedback, teacher_logprobs=teacher.double())
        if self.critic is not None:
            if values is None:
                values = self.critic.learner.forward(batch, VALUES).values
            assert values is not None
            feedback = replace(feedback, values=values.double(), final_values=self._final_values(batch, feedback))
        if old is not None:
            feedback = replace(feedback, log_importance=(old - rollout).double())
        charged = algorithm.charge(feedback, self.state, old, ref, full)
        advantages = algorithm.advantage(charged)
        returns = algorithm.advantage.targets(charged) if self.critic is not None else None
        trained = algorithm.trained(charged)
        prepared = Prepared(charged, advantages, old, ref, teacher, full, returns, trained)
        return prepared, _describe(prepared) | self._staleness(batch)

    def _stale(self, batch: TokenBatch) -> Tensor:
        """[N] which tokens an earlier version of the policy chose; none whose version is unknown."""
        version = batch.columns.get("version")
        if version is None:
            return torch.zeros(batch.tokens, dtype=torch.bool)
        return (version != UNKNOWN_VERSION) & (version < self.state.updates)

    def _staleness(self, batch: TokenBatch) -> dict[str, float]:
        version = batch.columns.get("version")
        known = torch.zeros(0) if version is None else version[version != UNKNOWN_VERSION]
        if not len(known):
            return {}
        age = (self.state.updates - known).double()
        return {"staleness/mean": float(age.mean()), "staleness/max": float(age.max())}

    def _directions(self, *anchors: str) -> dict[str, Any]:
        """Of the anchors whose divergence over the vocabulary is wanted."""
        return {name: self.algorithm.full_directions[name] for name in anchors}

    def _final_values(self, batch: TokenBatch, feedback: Feedback) -> Tensor:
        """The critic's value of the last state of every truncated episode, elsewhere 0; on the CPU."""
        assert self.critic is not None
        layout, cut = batch.layout, feedback.truncated
        final = torch.zeros(layout.size("episode"), dtype=torch.float64)
        last = {episode: row for row, episode in enumerate(layout.episode_of_sequence.tolist())}
        rows = [] if cut is None else [row for episode, row in last.items() if bool(cut[episode])]
        if rows:
            ends = TokenBatch.of([batch.ids(row) for row in rows], [[int(batch.lengths[row])] for row in rows])
            found = self.critic.learner.forward(ends, VALUES).values
            assert found is not None
            final[layout.episode_of_sequence[torch.tensor(rows)]] = found.double()
        return final

    # ------------------------------------------------------------------------------------------ the updates

    def update(self, step: int, batch: TokenBatch, prepared: Prepared, last_checkpoint: str = "none yet") -> Updated:
        """Passes of minibatches; while the critic warms up the policy does not move."""
        warming = self.state.batches < self.settings.critic_warmup
        sums = MetricSums()
        before, stopped = self.learner.version, False
        measured: dict[str, float] = {}
        tokens: dict[str, Tensor] = {}
        furthest = 0.0
        for sequences, seed in self._minibatches(step, batch, prepared):
            signals = self._signals(batch, prepared, sequences, seed)
            mine, found = self._backward(batch.select(sequences), signals, warming)
            furthest = mine.means().get("approx_kl", 0.0)
            if self.settings.target_kl is not None and furthest > STOP_FACTOR * self.settings.target_kl:
                stopped = True
                self._zero_grad()
                break
            sums.merge(mine)
            _keep(tokens, found, batch, sequences)
            measured |= self._step(sums, warming, last_checkpoint)
        made = self.learner.version - before
        metrics = {**sums.means(), **measured, "updates/made": float(made), "updates/stopped": float(stopped)}
        return Updated(metrics | self._advance(batch, prepared, metrics, made, furthest, warming), tokens)

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

        signals = self.algorithm.prepare(
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
        if signals.correction is not None:
            sums.add("correction/effective_samples", effective_sample_size(signals.correction), batch.tokens)
        shared = self.critic is not None and self.critic.shared
        if not warming or shared:
            found = self.learner.forward_backward(
                batch, self._policy_loss(signals, warming, shared), want=self._want(shared), anchors=self.anchors
            )
            sums.merge(found.metrics)
            tokens = found.tokens
            if self.text is not None and not warming:
                sums.add("text/loss", self.text.backward(), 1)
        if self.critic is not None and not shared:
            found = self.critic.learner.forward_backward(batch, self._value_loss(signals), want=VALUES)
            sums.merge(found.metrics)
        return sums, tokens

    def _want(self, shared: bool) -> Want:
        algorithm = self.algorithm
        bonus = algorithm.entropy is not None and self.state.entropy_counts
        wanted = {
            "reference": algorithm.needs_full_kl,
            "old": algorithm.needs_full_old_kl,
            "teacher": algorithm.needs_teacher_full_kl,
        }
        return Want(
            entropy="grad" if bonus or (algorithm.needs_entropy and algorithm.entropy is None) else True,
            values=shared,
            full_kl=self._directions(*(name for name, needed in wanted.items() if needed)),
        )

    def _policy_loss(self, signals: Signals, warming: bool, shared: bool) -> LossFunction:
        """The loss of the policy and of a critic on its backbone; while that warms up the critic's alone."""

        def loss(outputs: Outputs, part: MicroBatch) -> Loss:
            mine = signals.select(part.sequences).to(outputs.scored.device, outputs.scored.dtype)
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
            value, maxima = found.value, dict(found.metrics.maxima)
            if shared and outputs.values is not None:
                critic = self.algorithm.critic_loss(outputs.values, mine)
                value = critic.value if warming else value + critic.value
                sums |= critic.metrics.sums
            return Loss(value, Metrics(sums, maxima), found.tokens)

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
        furthest: float,
        warming: bool,
    ) -> dict[str, float]:
        """Move the algorithm's state and the learning rate by what was measured."""
        found: dict[str, float] = {}
        if warming or not made:  # nothing moved, so there is nothing to adapt to
            self.state = replace(self.state, batches=self.state.batches + 1)
            return {"critic/warmup": 1.0} if warming else {}
        kls = []
        for index, tie in enumerate(self.algorithm.ties):
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
            mean = (metrics if tie.in_loss else _describe(prepared)).get(FULL_KL_METRICS[tie.anchor], 0.0)
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


def _describe(prepared: Prepared) -> dict[str, float]:
    """What is to be said of a batch before its updates."""
    kept = prepared.feedback.layout.expand(prepared.trained, "episode")
    metrics = {
        "advantage/std": float(prepared.advantages.std(correction=0)) if len(kept) else 0.0,
        "completions/untrained": float((~prepared.trained).sum()),
    }
    if prepared.full is not None and bool(kept.any()):
        metrics[FULL_KL_METRICS["reference"]] = float(prepared.full[kept].double().mean())
    if prepared.returns is not None and prepared.feedback.values is not None:
        known = prepared.feedback.given
        explained = float(explained_variance(prepared.feedback.values[known], prepared.returns[known]))
        if explained == explained:
            metrics["explained_variance"] = explained
        metrics["returns/mean"] = float(prepared.returns[known].mean()) if bool(known.any()) else 0.0
    return metrics


def _costs(feedback: Feedback) -> dict[str, float]:
    """The mean outcome of every named reward over the answers that have one."""
    named = {name: values[~values.isnan()] for name, values in (feedback.named_rewards or {}).items()}
    return {name: float(values.mean()) for name, values in named.items() if len(values)}


def _keep(tokens: dict[str, Tensor], found: Mapping[str, Tensor], batch: TokenBatch, sequences: Tensor) -> None:
    """Put the quantities of one optimizer step where its tokens stand in the batch; later steps replace earlier ones."""
    _, places = batch.layout.select(sequences)
    for name, values in found.items():
        tokens.setdefault(name, torch.full((batch.tokens,), torch.nan))[places] = values.float()
