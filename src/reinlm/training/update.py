"""All updates of one collected batch: old, reference and values, advantages, then passes of minibatches in micro-batches."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from reinlm.algorithms import Algorithm, AlgorithmState
from reinlm.models import Policy, Reference, Scores, ValueModel, micro_batches, score
from reinlm.objectives import Feedback, Loss, Signals, effective_sample_size, explained_variance, k3
from reinlm.records import TrainBatch
from reinlm.runs import MetricSums
from reinlm.training.config import RLConfig
from reinlm.training.optimizer import Optimizer
from reinlm.training.setup import computing

STOP_FACTOR = 1.5
"""An update that would begin further than this times `target_kl` from the old policy is not made."""


@dataclass(frozen=True)
class Prepared:
    """What is known of a batch before its first update; all on the CPU, none with a gradient."""

    feedback: Feedback
    advantages: Tensor
    old: Tensor | None
    ref: Tensor | None
    returns: Tensor | None
    trained: Tensor
    """Which episodes reach the loss."""


class Updater:
    """Trains policy and critic on batches. What moves: `state`, the optimizers, the weights."""

    def __init__(
        self,
        config: RLConfig,
        algorithm: Algorithm,
        policy: Policy,
        reference: Reference | None,
        critic: ValueModel | None,
        optimizer: Optimizer,
        critic_optimizer: Optimizer | None,
        autocast: torch.dtype | None,
    ) -> None:
        self.config = config
        self.algorithm = algorithm
        self.policy = policy
        self.reference = reference
        self.critic = critic
        self.optimizer = optimizer
        self.critic_optimizer = critic_optimizer
        self.autocast = autocast
        self.state: AlgorithmState = algorithm.initial_state()

    # ------------------------------------------------------------------------------------------ before the updates

    def prepare(self, batch: TrainBatch, replayed: int = 0) -> tuple[Prepared, dict[str, float]]:
        """Log-probabilities, values and advantages of a batch whose last `replayed` groups are older than its policy."""
        settings, algorithm, layout = self.config.training, self.algorithm, batch.layout
        several = settings.passes * settings.minibatches > 1
        old = ref = values = None
        if several or replayed or algorithm.needs_old_logprobs or (self.critic is not None and self.critic.shared):
            old, values = self._measure(self.policy.model, batch)
            earlier = layout.index("group") >= layout.groups - replayed
            old = torch.where(earlier, batch.rollout_logprobs.to(old.dtype), old)
        if algorithm.needs_ref_logprobs:
            assert self.reference is not None
            with self.reference.active() as model:
                ref, _ = self._measure(model, batch)
        feedback = batch.feedback
        if self.critic is not None:
            values = self._values(batch) if values is None else values
            feedback = replace(feedback, values=values.double(), final_values=self._final_values(batch))
        if old is not None:
            feedback = replace(feedback, log_importance=(old - batch.rollout_logprobs).double())
        charged = algorithm.charge(feedback, self.state, old, ref)
        advantages = algorithm.advantage(charged)
        returns = algorithm.advantage.targets(charged) if self.critic is not None else None
        kept = algorithm.trained(charged)
        prepared = Prepared(charged, advantages, old, ref, returns, kept)
        return prepared, self._describe(batch, prepared)

    def _describe(self, batch: TrainBatch, prepared: Prepared) -> dict[str, float]:
        kept = prepared.feedback.layout.expand(prepared.trained, "episode")
        metrics = {
            "advantage/std": float(prepared.advantages.std(correction=0)) if len(kept) else 0.0,
            "completions/untrained": float((~prepared.trained).sum()),
        }
        if prepared.returns is not None and prepared.feedback.values is not None:
            known = prepared.feedback.given
            explained = float(explained_variance(prepared.feedback.values[known], prepared.returns[known]))
            if explained == explained:
                metrics["explained_variance"] = explained
            metrics["returns/mean"] = float(prepared.returns[known].mean()) if bool(known.any()) else 0.0
        return metrics

    def _warming(self) -> bool:
        return self.config.critic is not None and self.state.batches < self.config.critic.warmup_steps

    # ------------------------------------------------------------------------------------------ the updates

    def update(self, step: int, batch: TrainBatch, prepared: Prepared, last_checkpoint: str) -> dict[str, float]:
        """Passes of minibatches; while the critic warms up the policy does not move."""
        settings = self.config.training
        warming = self._warming()
        sums = MetricSums()
        made, stopped = 0, False
        measured: dict[str, float] = {}
        furthest = 0.0
        for number in range(settings.passes):
            order = random.Random(f"{self.config.seed}/{step}/{number}")
            for sequences in self._minibatches(batch, prepared, order):
                signals = self._signals(batch, prepared, sequences, seed=order.getrandbits(31))
                mine = MetricSums()
                loss, value = self._backward(batch, sequences, signals, mine, warming)
                furthest = mine.means().get("approx_kl", 0.0)
                if settings.target_kl is not None and furthest > STOP_FACTOR * settings.target_kl:
                    stopped = True
                    self._forget_gradients()
                    break
                sums.merge(mine)
                measured |= self._step(loss, value, sums, warming, last_checkpoint)
                made += not warming
            if stopped:
                break
        metrics = {**sums.means(), **measured, "updates/made": float(made), "updates/stopped": float(stopped)}
        return metrics | self._advance(batch, prepared, metrics, made, furthest, warming)

    def _signals(self, batch: TrainBatch, prepared: Prepared, sequences: Tensor, seed: int) -> Signals:
        layout, tokens = batch.layout.select(sequences)

        def part(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[tokens]

        return self.algorithm.prepare(
            layout,
            prepared.advantages[tokens],
            old_logprobs=part(prepared.old),
            rollout_logprobs=batch.rollout_logprobs[tokens],
            ref_logprobs=part(prepared.ref),
            returns=part(prepared.returns),
            old_values=part(prepared.feedback.values),
            seed=seed,
        )

    def _minibatches(self, batch: TrainBatch, prepared: Prepared, order: random.Random) -> list[Tensor]:
        """Whole groups in a fresh order, as sequence indices; answers that are not trained on are left out."""
        layout = batch.layout
        group = layout.group_of_episode[layout.episode_of_sequence]
        usable = prepared.trained[layout.episode_of_sequence]
        groups = list(range(layout.groups))
        order.shuffle(groups)
        count = min(self.config.training.minibatches, len(groups))
        parts = [torch.tensor(groups[part::count]) for part in range(count)]
        chosen = [torch.nonzero(usable & torch.isin(group, part)).flatten() for part in parts]
        return [sequences for sequences in chosen if len(sequences)]

    def _backward(
        self, batch: TrainBatch, sequences: Tensor, signals: Signals, sums: MetricSums, warming: bool
    ) -> tuple[float, float]:
        """The gradient of one optimizer step, micro-batch by micro-batch; returns the losses of policy and critic."""
        self.policy.model.train(self.config.model.gradient_checkpointing)
        loss_sum, value_sum = 0.0, 0.0
        if signals.correction is not None:
            size = effective_sample_size(signals.correction)
            sums.add("correction/effective_samples", size, signals.correction.numel())
        for micro in self._micro_batches(batch, sequences.tolist()):
            rows = [int(sequences[index]) for index in micro]
            part = signals.select(torch.tensor(micro))
            if not warming or (self.critic is not None and self.critic.shared):
                policy, value = self._policy_backward(batch, rows, part, sums, warming)
                loss_sum, value_sum = loss_sum + policy, value_sum + value
            if self.critic is not None and not self.critic.shared:
                with self.critic.active():
                    value_sum += self._critic_backward(self._state_values(batch, rows), part, sums)
        return loss_sum, value_sum

    def _policy_backward(
        self, batch: TrainBatch, rows: Sequence[int], part: Signals, sums: MetricSums, warming: bool
    ) -> tuple[float, float]:
        """Policy and shared critic from one forward pass, in one backward pass."""
        algorithm = self.algorithm
        entropy: Any = "grad" if algorithm.entropy is not None and self.state.entropy_counts else True
        scores = self._score(self.policy.model, batch, rows, entropy=entropy, full_kl=algorithm.needs_full_kl)
        part = part.to(scores.logprobs.device, scores.logprobs.dtype)
        loss = algorithm.loss(scores.logprobs, part, self.state, entropy=scores.entropy, full_kl=scores.full_kl)
        total, shared = loss.value, 0.0
        if scores.values is not None:
            value = algorithm.critic_loss(scores.values, part)
            total = value.value if warming else total + value.value
            shared = float(value.value.detach())
            _add(sums, value)
        total.backward()
        assert scores.entropy is not None
        sums.add("entropy", scores.entropy.detach().sum(), scores.entropy.numel())
        if scores.full_kl is not None:
            sums.add("kl/full", scores.full_kl.detach().sum(), scores.full_kl.numel())
        _add(sums, loss)
        return float(loss.value.detach()), shared

    def _critic_backward(self, values: Tensor, part: Signals, sums: MetricSums) -> float:
        loss = self.algorithm.critic_loss(values, part.to(values.device, values.dtype))
        loss.value.backward()
        _add(sums, loss)
        return float(loss.value.detach())

    def _step(
        self, loss: float, value: float, sums: MetricSums, warming: bool, last_checkpoint: str
    ) -> dict[str, float]:
        measured: dict[str, float] = {}
        if self.critic_optimizer is not None:
            mine = self.critic_optimizer.step(value, last_checkpoint)
            if "grad_norm" in mine:
                sums.add("critic/grad_norm", mine["grad_norm"], 1)
            measured["critic/learning_rate"] = mine["learning_rate"]
        if warming:
            self.optimizer.zero_grad()
            return measured
        sums.add("loss", loss, 1)
        mine = self.optimizer.step(loss, last_checkpoint)
        if "grad_norm" in mine:
            sums.add("grad_norm", mine.pop("grad_norm"), 1)
        return measured | mine

    def _forget_gradients(self) -> None:
        self.optimizer.zero_grad()
        if self.critic_optimizer is not None:
            self.critic_optimizer.zero_grad()

    # ------------------------------------------------------------------------------------------ after the updates

    def _advance(
        self,
        batch: TrainBatch,
        prepared: Prepared,
        metrics: dict[str, float],
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
            name = "kl/coefficient" if tie.anchor == "reference" else "kl/old_coefficient"
            found[name] = self.state.kl_coefficients[index]
            per_token, per_sequence = self._divergence(batch, prepared, tie.anchor)
            if tie.controller is not None and tie.controller.needs_kl:
                prefix = "kl/reference" if tie.anchor == "reference" else "kl/old"
                found |= {prefix: per_token, f"{prefix}_per_sequence": per_sequence}
            kls.append((per_token, per_sequence))
        if self.algorithm.entropy is not None:
            found["entropy/coefficient"] = self.state.entropy_coefficient if self.state.entropy_counts else 0.0
        self.state = self.algorithm.advance(
            self.state,
            updates=made,
            episodes=int(prepared.trained.sum()),
            kl=kls,
            entropy=metrics.get("entropy"),
        )
        target = self.config.training.kl_learning_rate
        if target is not None and made:
            if furthest > 2.0 * target:
                self.optimizer.scale = max(self.optimizer.scale / 1.5, 0.01)
            elif furthest < target / 2.0:
                self.optimizer.scale = min(self.optimizer.scale * 1.5, 10.0)
        return found

    def _divergence(self, batch: TrainBatch, prepared: Prepared, anchor: str) -> tuple[float, float]:
        """Mean per token and per answer, by k3: of the old policy from the reference, or of the policy from the old one."""
        kept = batch.layout.expand(prepared.trained, "episode")
        count = int(prepared.trained.sum())
        if anchor == "reference":
            if prepared.old is None or prepared.ref is None or not count:
                return 0.0, 0.0
            estimate = k3(prepared.old, prepared.ref)[kept]
        else:
            if prepared.old is None or not self.algorithm.needs_final_logprobs or not count:
                return 0.0, 0.0
            estimate = k3(prepared.old, self._measure(self.policy.model, batch)[0])[kept]
        total = float(estimate.double().sum())
        return total / max(len(estimate), 1), total / count

    def state_dict(self) -> dict[str, Any]:
        critic = None
        if self.critic is not None and self.critic_optimizer is not None:
            critic = {"weights": self.critic.learned(), "optimizer": self.critic_optimizer.state_dict()}
        return {"optimizer": self.optimizer.state_dict(), "algorithm": asdict(self.state), "critic": critic}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.state = AlgorithmState(**state["algorithm"])
        if self.critic is not None and self.critic_optimizer is not None:
            self.critic.restore(state["critic"]["weights"])
            self.critic_optimizer.load_state_dict(state["critic"]["optimizer"])

    # ------------------------------------------------------------------------------------------ forward passes

    def _micro_batches(self, batch: TrainBatch, sequences: Sequence[int]) -> list[list[int]]:
        """Places in `sequences`, without those that hold no scored token."""
        settings = self.config.training
        scored = [place for place, index in enumerate(sequences) if batch.positions[index]]
        lengths = [len(batch.sequences[sequences[place]]) for place in scored]
        parts = micro_batches(lengths, settings.micro_batch_tokens, settings.packing)
        return [[scored[index] for index in part] for part in parts]

    def _score(
        self,
        model: torch.nn.Module,
        batch: TrainBatch,
        rows: Sequence[int],
        *,
        entropy: Any = False,
        full_kl: bool = False,
    ) -> Scores:
        settings = self.config.training
        shared = self.critic is not None and self.critic.shared and model is self.policy.model
        with computing(self.policy, self.autocast):
            return score(
                model,
                [batch.sequences[row] for row in rows],
                [batch.positions[row] for row in rows],
                temperature=self.config.rollout.temperature,
                entropy=entropy,
                chunk_tokens=settings.logprob_chunk,
                packing=settings.packing,
                reference=self.reference if full_kl else None,
                value_head=self.critic.head if shared and self.critic is not None else None,
            )

    @torch.no_grad()
    def _measure(self, model: torch.nn.Module, batch: TrainBatch) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities of every scored token of the batch, and a shared critic's values; on the CPU."""
        model.eval()
        double = self.policy.model.dtype == torch.float64
        logprobs = torch.zeros(batch.layout.tokens, dtype=torch.float64 if double else torch.float32)
        values: Tensor | None = None
        for rows in self._micro_batches(batch, range(len(batch.sequences))):
            _, tokens = batch.layout.select(torch.tensor(rows))
            scores = self._score(model, batch, rows)
            logprobs[tokens] = scores.logprobs.to("cpu", logprobs.dtype)
            if scores.values is not None:
                values = torch.zeros_like(logprobs) if values is None else values
                values[tokens] = scores.values.to("cpu", logprobs.dtype)
        return logprobs, values

    def _state_values(self, batch: TrainBatch, rows: Sequence[int], final: bool = False) -> Tensor:
        assert self.critic is not None
        sequences = [batch.sequences[row] for row in rows]
        positions = [(len(s),) if final else batch.positions[row] for s, row in zip(sequences, rows, strict=True)]
        with computing(self.policy, self.autocast):
            return self.critic.values(sequences, positions, self.config.training.packing)

    @torch.no_grad()
    def _values(self, batch: TrainBatch) -> Tensor:
        """The critic's value of the state of every scored token, on the CPU."""
        assert self.critic is not None
        self.policy.model.eval()
        values = torch.zeros(batch.layout.tokens, dtype=torch.float64)
        with self.critic.active():
            for rows in self._micro_batches(batch, range(len(batch.sequences))):
                _, tokens = batch.layout.select(torch.tensor(rows))
                values[tokens] = self._state_values(batch, rows).cpu().double()
        return values

    @torch.no_grad()
    def _final_values(self, batch: TrainBatch) -> Tensor:
        """The critic's value of the last state of every truncated episode, elsewhere 0; on the CPU."""
        assert self.critic is not None
        self.policy.model.eval()
        layout, cut = batch.layout, batch.feedback.truncated
        final = torch.zeros(layout.size("episode"), dtype=torch.float64)
        last = {episode: row for row, episode in enumerate(layout.episode_of_sequence.tolist())}
        ends = [] if cut is None else [row for episode, row in last.items() if bool(cut[episode])]
        with self.critic.active():
            for part in self._micro_batches(batch, ends):
                rows = [ends[place] for place in part]
                values = self._state_values(batch, rows, final=True)
                final[layout.episode_of_sequence[torch.tensor(rows)]] = values.cpu().double()
        return final


def _add(sums: MetricSums, loss: Loss) -> None:
    for name, (value, count) in loss.metrics.sums.items():
        sums.add(name, value, count)
    for name, largest in loss.metrics.maxima.items():
        sums.maximum(name, largest)
