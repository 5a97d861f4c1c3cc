"""Train a reward model: scores of the answers that were judged together, a loss of each unit, one optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from reinlm.batches import TokenBatch
from reinlm.data import Examples, Judged, RowOrder
from reinlm.loop import BatchPrepared, StepContext, StepReport, Updated
from reinlm.models import VALUES, Outputs, RewardModel, restore_policy
from reinlm.objectives import Loss, Metrics
from reinlm.objectives.intervals import difference_interval
from reinlm.training.learner import Learner, LossFunction, MicroBatch
from reinlm.training.ledger import Resident
from reinlm.training.optimizer import Optimizer
from reinlm.training.reward_config import RewardModelConfig
from reinlm.training.reward_loss import UnitTargets, settled_loss, unit_losses
from reinlm.training.reward_report import held_out_figures
from reinlm.training.reward_tables import held_out_tables
from reinlm.training.setup import Phases, autocast, total_steps

if TYPE_CHECKING:
    from jaxtyping import Float

TRAINING_SAMPLE = 256
"""Units of the training data that are scored beside the held-out ones, for the gap between both."""


class RewardRun:
    """What `reinlm reward` runs: one step learns from `batch_size` pairs, rankings or single answers."""

    kind = "reward"

    def __init__(
        self,
        config: RewardModelConfig,
        reward: RewardModel,
        judged: Judged,
        held_out: Mapping[str, Judged],
        reference: Examples | None = None,
        order: RowOrder | None = None,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        """`reference` are the answers to normalise by; None: the first ones of the training data."""
        self.config = config
        self.reward = reward
        self.policy = reward.policy
        self.judged = judged
        self.held_out = held_out
        settings = config.training
        self.loss = settled_loss(config.loss, judged)
        self.batch_size = min(settings.batch_size, len(judged))
        self.total_steps = total_steps(settings, len(judged), self.batch_size)
        first = order or RowOrder(len(judged), seed=config.seed)
        self.order: RowOrder | BalancedOrder = first
        if settings.length == "balanced":
            self.order = BalancedOrder(judged, config.seed)
        self.scales = {name: _scale(values) for name, values in judged.ratings.items()}
        lengths = judged.answer_lengths
        self._length = float(lengths.mean()), max(float(lengths.std()), 1.0)
        self.slope = nn.Parameter(torch.zeros((), device=reward.policy.device))
        """The coefficient of an answer's length, in standard deviations of length; 0 where no term is fitted."""
        self.model = reward.model
        if config.head.dropout:
            self.model.value_head = nn.Sequential(nn.Dropout(config.head.dropout), reward.head)
        trained = [*reward.parameters(), *([self.slope] if settings.length == "term" else [])]
        self.learner = Learner(
            self.model,
            Optimizer(trained, config.optimizer, self.total_steps),
            micro_batch_tokens=settings.micro_batch_tokens,
            autocast=autocast(settings, reward.policy),
        )
        self.bootstrap = _bootstrap(len(judged), reward.heads.members, config.seed)
        self.reference = reference
        self._say = say
        self.tokens = 0
        self.tables: dict[str, Any] = {}
        """What the last evaluation found beside numbers; see `held_out_tables`."""

    @property
    def version(self) -> int:
        return self.learner.version

    # ------------------------------------------------------------------------------------------ a step

    def step(self, step: int, context: StepContext) -> StepReport:
        phases = Phases()
        units = self.order.take(self.batch_size)
        part = self.judged.take(units)
        batch = judged_batch(self.reward, part)
        context.send(BatchPrepared(step, batch.sequences, int(part.examples.offsets[-1])))
        with phases("update"):
            found = self.learner.forward_backward(batch, self._loss(part, units), want=VALUES, unit="group")
            measured = self.learner.optim_step(context.last_checkpoint)
        metrics = {**found.metrics.means(), "loss": found.loss, **measured}
        if self.config.training.length == "term":
            metrics["length_slope"] = float(self.slope.detach())
        context.send(Updated(step, metrics))
        self.tokens += int(part.examples.offsets[-1])
        return StepReport(
            {
                **metrics,
                **phases.seconds,
                "epoch": self.order.epochs,
                "num_tokens": float(self.tokens),
                "tokens_per_second": int(part.examples.offsets[-1]) / phases.seconds["time/update"],
            }
        )

    def _loss(self, part: Judged, units: Sequence[int]) -> LossFunction:
        """Σ_u w_u loss_u / Σ_u w_u, the mean over the members, of which each has its own bootstrap weights of the units."""
        targets = UnitTargets.of(part, self.scales)
        own = torch.ones(len(part)) if part.weight is None else torch.tensor(part.weight, dtype=torch.float32)
        weights = own[:, None] * self.bootstrap[torch.tensor(units)]
        weights = weights / weights.sum(0).clamp(min=1e-12) / weights.shape[1]
        lengths = torch.tensor((part.answer_lengths - self._length[0]) / self._length[1], dtype=torch.float32)

        def loss(outputs: Outputs, micro: MicroBatch) -> Loss:
            assert outputs.values is not None
            pooled = self.reward.pooled(outputs.values, micro.batch.layout)
            steps = part.steps is not None
            order = torch.argsort(micro.sequences)
            chosen = micro.sequences[order]
            own_targets, places = targets.select(chosen)
            if steps:  # scores of steps stand by sequence, in the order of the micro-batch
                owner = micro.batch.layout.index("sequence")
                scores = pooled[torch.argsort(micro.sequences[owner], stable=True).to(pooled.device)]
            else:
                scores = pooled[order.to(pooled.device)]
                scores = scores + self._length_term(lengths[chosen], scores)
            own_targets = own_targets.to(pooled.device)
            members = [unit_losses(self.loss, scores[:, k], own_targets) for k in range(scores.shape[1])]
            share = weights[places].to(pooled.device, pooled.dtype)
            value = (torch.stack(members, dim=1) * share).sum()
            return Loss(value, Metrics(_measured(self.reward, scores.detach(), own_targets)))

        return loss

    def _length_term(
        self, lengths: Float[Tensor, " answers"], scores: Float[Tensor, "answers members criteria"]
    ) -> Tensor | float:
        if self.config.training.length != "term":
            return 0.0
        return (self.slope * lengths.to(self.slope.device)).to(scores.dtype)[:, None, None]

    def set_learning_rate(self, value: float) -> None:
        assert self.learner.optimizer is not None
        self.learner.optimizer.set_rate(value)

    def scale_learning_rate(self, factor: float) -> None:
        assert self.learner.optimizer is not None
        self.learner.optimizer.scale *= factor

    # ------------------------------------------------------------------------------------------ evaluation

    def evaluate(self, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Metrics of each set, and what training and held-out data differ by; `tables` are those of this evaluation."""
        metrics: dict[str, float] = {}
        tables: dict[str, Any] = {}
        for name, judged in self.held_out.items():
            outputs = self._outputs(judged)
            found = self._figures(judged, outputs)
            if not metrics:
                found |= self._gaps(found)
            metrics |= {f"eval/{name}/{key}": value for key, value in found.items()}
            tables[name] = held_out_tables(judged, self.reward.scores(outputs).reward)
        self.tables = {"step": step, "sets": tables}
        return metrics, []

    def _figures(self, judged: Judged, outputs: Tensor, *, brief: bool = False) -> dict[str, float]:
        found = self.reward.scores(outputs)
        targets = UnitTargets.of(judged, self.scales)
        losses = torch.stack([unit_losses(self.loss, outputs[:, k], targets) for k in range(outputs.shape[1])]).mean(0)
        return held_out_figures(judged, found.reward, found.spread, losses, seed=self.config.seed, brief=brief)

    def _gaps(self, held_out: Mapping[str, float]) -> dict[str, float]:
        """Accuracy and loss of a part of the training data less those of the held-out data, with their intervals."""
        part = self.judged.take(range(min(TRAINING_SAMPLE, len(self.judged))))
        trained = self._figures(part, self._outputs(part), brief=True)
        gaps: dict[str, float] = {}
        for key in ("accuracy", "loss"):
            if key in trained:
                one, other = (
                    (found[key], (found[f"{key}_low"], found[f"{key}_high"])) for found in (trained, held_out)
                )
                low, high = difference_interval(one, other)
                gaps |= {f"gap_{key}": one[0] - other[0], f"gap_{key}_low": low, f"gap_{key}_high": high}
        return gaps

    def _outputs(self, judged: Judged) -> Float[Tensor, "answers members criteria"]:
        """The outputs of every answer, or of every step, of judged answers."""
        batch = judged_batch(self.reward, judged)
        values = self.learner.forward(batch, VALUES).values
        assert values is not None
        return self.reward.pooled(values, batch.layout)

    # ------------------------------------------------------------------------------------------ checkpoints

    def save(self, folder: Path) -> None:
        """Write the reward model, normalised on the reference set; the random state of the run stays as it is."""
        with torch.random.fork_rng():
            self.normalised().save(folder)

    def normalised(self) -> RewardModel:
        """The reward model as it is saved."""
        settings = self.config.normalize
        if settings is None or self.reward.heads.reads == "steps":
            return self.reward
        examples = self.judged.examples if self.reference is None else self.reference
        examples = examples.take(range(min(settings.answers, len(examples))))
        return self.reward.normalised(self.reward.score(examples_batch(self.reward, examples)).reward)

    def restore(self, folder: Path) -> None:
        """Take the backbone back, bit for bit; the heads are in the state."""
        restore_policy(self.policy, folder)

    def residents(self) -> list[Resident]:
        """The model in memory."""
        own = [*self.model.lm.parameters(), self.reward.head.weight]
        fitted = [self.slope] if self.config.training.length == "term" else []
        return [Resident("reward", [*own, *fitted], list(self.model.lm.buffers()), self.learner.optimizer)]

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizer": self.learner.state_dict(),
            "order": self.order.state_dict(),
            "tokens": self.tokens,
            "heads": self.reward.head.weight.detach().cpu().clone(),
            "length_slope": self.slope.detach().cpu().clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(state["optimizer"])
        self.order.load_state_dict(state["order"])
        self.tokens = int(state["tokens"])
        with torch.no_grad():
            self.reward.head.weight.copy_(state["heads"])
            self.slope.copy_(state["length_slope"])


class BalancedOrder:
    """As many units in which the better answer is the longer one as others; the fewer ones come again sooner."""

    def __init__(self, judged: Judged, seed: int) -> None:
        lengths, starts = judged.answer_lengths, judged.starts
        last = starts + judged.sizes - 1
        longer = lengths[starts] > lengths[last]
        self._members = [np.flatnonzero(longer), np.flatnonzero(~longer)]
        self._orders = [RowOrder(max(1, len(part)), seed=seed) for part in self._members]
        self.size = len(judged)
        self.taken = 0

    @property
    def epochs(self) -> float:
        """Units taken, in passes over as many as there are."""
        return self.taken / self.size

    def take(self, count: int) -> list[int]:
        """The next units: half of them of each part, where both have some."""
        half = count // 2 + (count % 2) * (self.taken % 2)
        shares = [half, count - half]
        if not len(self._members[0]):
            shares = [0, count]
        if not len(self._members[1]):
            shares = [count, 0]
        parts = zip(self._members, self._orders, shares, strict=True)
        found = [int(unit) for part, order, share in parts for unit in part[order.take(share)]]
        self.taken += count
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken, "orders": [dict(order.state_dict()) for order in self._orders]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.taken = int(state["taken"])
        for order, one in zip(self._orders, state["orders"], strict=True):
            order.load_state_dict(one)


def judged_batch(reward: RewardModel, judged: Judged) -> TokenBatch:
    """Where the heads are read in judged answers; a unit is a group."""
    if judged.steps is None:
        return examples_batch(reward, judged.examples, judged.unit.tolist())
    steps: list[list[int]] = [[] for _ in range(len(judged.examples))]
    for sequence, end in zip(judged.steps.sequence.tolist(), judged.steps.end.tolist(), strict=True):
        steps[sequence].append(end)
    return examples_batch(reward, judged.examples, judged.unit.tolist(), steps)


def examples_batch(
    reward: RewardModel,
    examples: Examples,
    units: Sequence[int] | None = None,
    steps: Sequence[Sequence[int]] | None = None,
) -> TokenBatch:
    """Where the heads are read in prompts with their answers."""
    ids = [example.token_ids.tolist() for example in examples]
    starts = [int(np.argmax(example.trained)) for example in examples]
    return reward.batch(ids, starts, units=units, steps=steps)


def _measured(
    reward: RewardModel, outputs: Float[Tensor, "answers members criteria"], targets: UnitTargets
) -> dict[str, tuple[Tensor, Tensor]]:
    """Sums with their counts: how many neighbours of a unit are in the right order, by how much, and the spread."""
    weights = torch.tensor(reward.heads.weights, dtype=outputs.dtype, device=outputs.device)
    members = outputs @ weights
    score = members.mean(1)
    count = torch.tensor(float(len(score)))
    found = {"score/mean": (score.sum(), count)}
    if members.shape[1] > 1:
        found["score/spread"] = (members.std(1, correction=0).sum(), count)
    if targets.step_label is not None:
        right = (score > 0) == targets.step_label
        return found | {"score/accuracy": (right.sum(), count)}
    if targets.label is not None:
        return found | {"score/accuracy": (((score > 0) == targets.label).sum(), count)}
    if targets.units == len(score):
        return found
    neighbours = (targets.unit[1:] == targets.unit[:-1]) & (targets.rank[1:] > targets.rank[:-1])
    gap = (score[:-1] - score[1:])[neighbours]
    pairs = torch.tensor(float(len(gap)))
    right = (gap > 0).sum() + 0.5 * (gap == 0).sum()
    return found | {"score/accuracy": (right, pairs), "score/margin": (gap.sum(), pairs)}


def _bootstrap(units: int, members: int, seed: int) -> Float[Tensor, "units members"]:
    """How often each member has drawn each unit: Poisson(1), the limit of a bootstrap (Oza & Russell 2001); 1 of one member."""
    if members == 1:
        return torch.ones(units, 1)
    generator = torch.Generator().manual_seed(seed)
    return torch.poisson(torch.ones(units, members), generator=generator)


def _scale(values: Any) -> tuple[float, float]:
    """Mean and standard deviation of the ratings that are given; a deviation of 0 counts as 1."""
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    deviation = float(known.std())
    return float(known.mean()), deviation if deviation > 0 else 1.0
