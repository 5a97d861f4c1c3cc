"""A model with its optimizer, and the one place where micro-batches go through a model.

SFT, preference losses, reward models, critics and reinforcement learning are each a loss function that is handed to
`forward_backward`; a learner knows no recipe.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from reinlm.batches import TokenBatch
from reinlm.models import Anchor, Outputs, TokenModel, Want, micro_batches, micro_batches_sharing, training_mode
from reinlm.models.modules import whole
from reinlm.objectives import Level, Loss, Metrics
from reinlm.runs import MetricSums
from reinlm.training.optimizer import Optimizer

if TYPE_CHECKING:
    from jaxtyping import Int

LOGPROBS = Want()


@dataclass(frozen=True)
class MicroBatch:
    """The sequences of one micro-batch, as an argument of a loss function.

    Example: the sequences 4 and 1 of the step's batch:
        MicroBatch(batch=step.select(tensor([4, 1])), sequences=tensor([4, 1]))
    """

    batch: TokenBatch
    sequences: Int[Tensor, " sequences"]
    """Their numbers in the batch of the whole step, to select from what was prepared for it."""


LossFunction = Callable[[Outputs, MicroBatch], Loss]
"""Outputs of some sequences of a step -> their part of its loss. Parts add up: a loss weighs by counts of the whole step."""


@dataclass(frozen=True)
class Pass:
    """The result of one `forward_backward`, over all micro-batches and ranks."""

    loss: float
    metrics: MetricSums
    tokens: Mapping[str, Tensor] = field(default_factory=dict)
    """Per-token quantities [N] that the loss function returned, by name; on the CPU."""


@dataclass(frozen=True)
class Weights:
    """A model's weights, whole, in buckets that fit in memory one at a time."""

    version: int
    """Optimizer steps made."""
    buckets: Iterator[dict[str, Tensor]]


class Learner:
    """Scores and trains one model.

    With torch.distributed initialised, every rank holds the same batch, computes its share of the micro-batches and gets the
    whole result: outputs, losses, metrics and gradients are those of one process. Every rank makes the same number of
    passes; one that has run out makes an empty pass, whose loss is 0, so that collectives meet.

    Args:
        model: what is run; sharded with `fully_shard` or not.
        optimizer: steps its parameters; None for a model that is only scored.
        micro_batch_tokens: tokens, padding included and shared ones once, that go through the model at once.
        adapter: the adapter of the model that this learner is.
        train_mode: run `forward_backward` in training mode: with dropout, or for gradient checkpointing.
        autocast: the type to compute in; None for that of the weights.
    """

    def __init__(
        self,
        model: TokenModel,
        optimizer: Optimizer | None = None,
        *,
        micro_batch_tokens: int = 16384,
        adapter: str | None = None,
        train_mode: bool = True,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.micro_batch_tokens = micro_batch_tokens
        self.adapter = adapter
        self.train_mode = train_mode
        self.autocast = autocast
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self._loss = 0.0

    # ------------------------------------------------------------------------------------------ passes

    @torch.no_grad()
    def forward(
        self,
        batch: TokenBatch,
        want: Want = LOGPROBS,
        *,
        anchors: Mapping[str, Anchor] | None = None,
        anchor: Anchor | None = None,
    ) -> Outputs:
        """What `want` names at every scored token of the batch, without gradient, in evaluation mode; on the CPU.

        `anchor` is run in place of the learner's own model.
        """
        model, adapter = (anchor.model, anchor.adapter) if anchor else (self.model, self.adapter)
        double = model.dtype == torch.float64
        result: Outputs | None = None
        for part, outputs in self._passes(model, adapter, batch, want, anchors, train=False, unit="sequence"):
            found = outputs.map(lambda x: x.to("cpu", _cpu_type(x, double)))
            if result is None:
                result = found.map(lambda x: x.new_zeros(batch.tokens, *x.shape[1:]))
            if part is not None:
                _, tokens = batch.layout.select(part.sequences)
                _write(result, tokens, found)
        if result is None:
            return _empty(want, double)
        return result if self.ranks == 1 else result.map(self._sum_over_ranks)

    def forward_backward(
        self,
        batch: TokenBatch,
        loss_fn: LossFunction,
        *,
        want: Want = LOGPROBS,
        anchors: Mapping[str, Anchor] | None = None,
        unit: Level = "sequence",
    ) -> Pass:
        """Add the gradient of a step's loss to the parameters, micro-batch by micro-batch.

        Sequences of one `unit` (with "group": of one pair, or one prompt) are never split. What the whole step is needed for
        (weights, counts, selections) is the loss function's to have prepared.
        """
        loss, sums = 0.0, MetricSums()
        tokens: dict[str, Tensor] = {}
        for part, outputs in self._passes(self.model, self.adapter, batch, want, anchors, train=True, unit=unit):
            if part is None:
                outputs.nothing().backward()
                continue
            found = loss_fn(outputs, part)
            with record_function("backward"):
                found.value.backward()
            loss += float(found.value.detach())
            add_metrics(sums, found.metrics)
            _, places = batch.layout.select(part.sequences)
            for name, values in found.tokens.items():
                kept = tokens.setdefault(name, torch.zeros(batch.tokens, dtype=_cpu_type(values, False)))
                kept[places] = values.detach().to("cpu", kept.dtype)
        loss, sums, tokens = self._reduced(loss, sums, tokens)
        self._loss += loss
        return Pass(loss, sums, tokens)

    def _passes(
        self,
        model: TokenModel,
        adapter: str | None,
        batch: TokenBatch,
        want: Want,
        anchors: Mapping[str, Anchor] | None,
        *,
        train: bool,
        unit: Level,
    ) -> Iterator[tuple[MicroBatch | None, Outputs]]:
        """Every micro-batch of this rank with its outputs; None for an empty pass that only keeps the ranks in step."""
        plan = self._plan(model, batch, unit)
        mine = plan[self.rank :: self.ranks]
        padding = -(-len(plan) // self.ranks) - len(mine)
        with contextlib.ExitStack() as stack:
            for anchor in (anchors or {}).values():
                stack.enter_context(training_mode(anchor.model, False))
            stack.enter_context(training_mode(model, train and self.train_mode))
            stack.enter_context(model.using(adapter))
            for rows in [*mine, *[None] * padding]:
                part = None if rows is None else MicroBatch(batch.select(rows), rows)
                with self._computing(model), record_function("forward"):
                    outputs = model(_nothing_batch() if part is None else part.batch, want, anchors)
                yield part, outputs

    def _plan(self, model: TokenModel, batch: TokenBatch, unit: Level) -> list[Int[Tensor, " rows"]]:
        """The micro-batches of all ranks: sequences with a scored token, in units that are never split."""
        counts = batch.layout.count("sequence")
        scored = torch.nonzero(counts).flatten().tolist()
        places = {sequence: place for place, sequence in enumerate(scored)}
        lengths = batch.lengths[scored].tolist()
        if unit == "sequence":
            units: list[list[int]] | None = None
        else:
            episode = batch.layout.episode_of_sequence
            owners = (episode if unit == "episode" else batch.layout.group_of_episode[episode]).tolist()
            together: dict[int, list[int]] = {}
            for sequence in scored:
                together.setdefault(owners[sequence], []).append(places[sequence])
            units = list(together.values())
        if model.packing == "share":
            ids = np.split(batch.token_ids.numpy(), batch.lengths.cumsum(0)[:-1].numpy())
            parts = micro_batches_sharing([ids[sequence] for sequence in scored], self.micro_batch_tokens, units)
        else:
            parts = micro_batches(lengths, self.micro_batch_tokens, model.packing, units)
        return [torch.tensor([scored[place] for place in part]) for part in parts]

    def _computing(self, model: TokenModel) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.autocast is None else torch.autocast(model.device.type, self.autocast)

    # ------------------------------------------------------------------------------------------ steps

    def optim_step(self, last_checkpoint: str = "none yet") -> dict[str, float]:
        """Clip, and step or skip; clear the gradient. Returns `learning_rate`, `grad_norm` and `updates/skipped`.

        Raises RunError after several updates in a row that were not finite; it names `last_checkpoint`.
        """
        assert self.optimizer is not None, "a learner without an optimizer has no step to take"
        if self.ranks > 1:
            self._sum_gradients()
        with record_function("optimizer"):
            measured = self.optimizer.step(self._loss, last_checkpoint)
        self._loss = 0.0
        return measured

    def zero_grad(self) -> None:
        """Forget the gradient of the step."""
        self._loss = 0.0
        if self.optimizer is not None:
            self.optimizer.zero_grad()

    @property
    def version(self) -> int:
        """Optimizer steps made, those that were skipped left out."""
        return 0 if self.optimizer is None else self.optimizer.steps - self.optimizer.skipped

    def weights(self, bucket_bytes: int = 1 << 28) -> Weights:
        """The language model's weights, whole, in buckets by name."""
        return Weights(self.version, _buckets(self.model.lm.state_dict(), bucket_bytes))

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, whole on every rank."""
        return {} if self.optimizer is None else self.optimizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state)

    # ------------------------------------------------------------------------------------------ ranks

    def _sum_over_ranks(self, x: Tensor) -> Tensor:
        """Every rank holds its own tokens and 0 elsewhere."""
        moved = x.to(self.model.device, torch.uint8 if x.dtype == torch.bool else x.dtype)
        dist.all_reduce(moved)
        return moved.to("cpu", x.dtype)

    def _reduced(
        self, loss: float, sums: MetricSums, tokens: dict[str, Tensor]
    ) -> tuple[float, MetricSums, dict[str, Tensor]]:
        if self.ranks == 1:
            return loss, sums, tokens
        shapes = {name: values.dtype for name, values in tokens.items()}
        gathered: list[Any] = [None] * self.ranks
        dist.all_gather_object(gathered, (loss, sums.state(), shapes))
        merged = MetricSums()
        known: dict[str, torch.dtype] = {}
        for _, state, names in gathered:
            merged.merge(MetricSums.from_state(state))
            known |= names
        size = next((len(values) for values in tokens.values()), 0)
        sizes: list[Any] = [None] * self.ranks
        dist.all_gather_object(sizes, size)
        filled = {name: tokens.get(name, torch.zeros(max(sizes), dtype=dtype)) for name, dtype in sorted(known.items())}
        return (
            math.fsum(part for part, _, _ in gathered),
            merged,
            {n: self._sum_over_ranks(x) for n, x in filled.items()},
        )

    def _sum_gradients(self) -> None:
        """Gradients of parameters that are not sharded; sharded ones were summed in the backward pass."""
        assert self.optimizer is not None
        for parameter in self.optimizer.parameters:
            if not hasattr(parameter, "full_tensor"):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)


def add_metrics(sums: MetricSums, metrics: Metrics) -> None:
    """Take what a loss measured into running sums."""
    for name, (value, count) in metrics.sums.items():
        sums.add(name, value, count)
    for name, largest in metrics.maxima.items():
        sums.maximum(name, largest)


def _nothing_batch() -> TokenBatch:
    """The shortest sequence that can be scored, for an empty pass."""
    return TokenBatch.of([[0, 0]], [[1]])


def _cpu_type(x: Tensor, double: bool) -> torch.dtype:
    if not x.is_floating_point():
        return x.dtype
    return torch.float64 if double or x.dtype == torch.float64 else torch.float32


def _write(into: Outputs, tokens: Tensor, part: Outputs) -> None:
    for name in ("logprobs", "entropy", "likeliest", "values", "hidden"):
        if (values := getattr(part, name)) is not None:
            getattr(into, name)[tokens] = values
    for name, values in part.full_kl.items():
        into.full_kl[name][tokens] = values


def _empty(want: Want, double: bool) -> Outputs:
    """Outputs of a batch without a scored token."""
    none = torch.zeros(0, dtype=torch.float64 if double else torch.float32)
    return Outputs(
        logprobs=none if want.logprobs else None,
        entropy=none if want.entropy else None,
        likeliest=none.bool() if want.entropy else None,
        values=none if want.values else None,
        full_kl=dict.fromkeys(want.full_kl, none),
        hidden=none.new_zeros(0, 0) if want.hidden else None,
    )


def _buckets(weights: Mapping[str, Tensor], limit: int) -> Iterator[dict[str, Tensor]]:
    bucket: dict[str, Tensor] = {}
    size = 0
    for name, weight in weights.items():
        value = whole(weight).detach()
        if bucket and size + value.nbytes > limit:
            yield bucket
            bucket, size = {}, 0
        bucket[name] = value
        size += value.nbytes
    if bucket:
        yield bucket
