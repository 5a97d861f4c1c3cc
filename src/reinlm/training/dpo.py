"""Direct preference learning: an optimizer step raises judged-better answers above worse ones, or labels good and bad ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reinlm.algorithms import PreferenceAlgorithm
from reinlm.batches import TokenBatch
from reinlm.data import Examples, Judged, RowOrder
from reinlm.errors import InputError
from reinlm.loop import BatchPrepared, StepContext, StepReport, Updated
from reinlm.models import Anchor, Outputs, Policy, Reference, TokenModel, Want, disable_dropout
from reinlm.objectives import Loss, Metrics
from reinlm.training.anchors import fingerprint
from reinlm.training.dpo_config import DPOConfig
from reinlm.training.judged_step import (
    Items,
    compared_of,
    examples_batch,
    figures,
    mismatched_examples,
    outcomes,
    slices_of,
    with_interval,
)
from reinlm.training.learner import Learner, MicroBatch
from reinlm.training.likelihoods import FallingLikelihoods
from reinlm.training.optimizer import Optimizer
from reinlm.training.policy import TrainsPolicy, same_tokens
from reinlm.training.reference_logprobs import KnownLogprobs, known_logprobs
from reinlm.training.setup import Phases, autocast, total_steps

if TYPE_CHECKING:
    from reinlm.models.token_model import Direction


@dataclass(frozen=True)
class JudgedSet:
    """Judged answers with what the reference says of them, computed before training."""

    judged: Judged
    reference: KnownLogprobs | None
    """None where the algorithm reads none, or where it is computed in each step."""
    mismatched: Examples | None
    """Every prompt with the answer to another one; None where the algorithm reads none."""
    mismatched_reference: KnownLogprobs | None


class Compared(NamedTuple):
    """Some units of a set, with all of a step that is known before the policy is run."""

    batch: TokenBatch
    items: Items
    reference: Tensor | None
    """[tokens] log π_ref of every scored token."""
    mismatched: TokenBatch | None
    mismatched_reference: Tensor | None


class DPORun(TrainsPolicy):
    """What `reinlm dpo` runs: one step learns from `batch_size` pairs, rankings or labelled answers."""

    kind = "dpo"

    def __init__(
        self,
        config: DPOConfig,
        algorithm: PreferenceAlgorithm,
        policy: Policy,
        judged: Judged,
        held_out: Mapping[str, Judged],
        order: RowOrder | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.config = config
        self.algorithm = algorithm
        self.policy = policy
        self._say = say
        settings = config.training
        if not settings.dropout:
            disable_dropout(policy.model)
        self.batch_size = min(settings.batch_size, len(judged))
        self.total_steps = total_steps(settings, len(judged), self.batch_size)
        self.order = order or RowOrder(len(judged), seed=config.seed)
        self.model = TokenModel(policy.model, packing=settings.packing, chunk_tokens=settings.logprob_chunk)
        self.learner = Learner(
            self.model,
            Optimizer(policy.model.parameters(), config.optimizer, self.total_steps),
            micro_batch_tokens=settings.micro_batch_tokens,
            train_mode=settings.dropout or config.model.gradient_checkpointing,
            autocast=autocast(settings, policy),
        )
        self.reference, self.mark = self._reference()
        self.data = self._known(judged)
        self.held_out = {name: self._known(one) for name, one in held_out.items()}
        if not self.live:
            self.reference = None
        self.constants: Mapping[str, float] = {}
        self.falling = FallingLikelihoods(say)
        self.tokens = 0

    # ------------------------------------------------------------------------------------------ the reference

    @property
    def live(self) -> bool:
        """Whether the reference is run in every step: it moves, or its whole distribution is read."""
        moves = self.config.training.reference_refresh is not None
        return self.algorithm.needs_reference and (moves or self.algorithm.needs_full_kl)

    def _reference(self) -> tuple[Reference | None, str | None]:
        """The reference where it is a model of its own or moves, and the hash of its weights."""
        if not self.algorithm.needs_reference:
            return None, None
        source = self.config.reference
        other = same_tokens("reference.path", source.path, self.config.model, self.policy).model if source else None
        shared = hasattr(self.policy.model, "disable_adapter")
        if other is None and not shared and not self.live:
            return None, None  # the policy itself, as long as it is not trained
        reference = Reference(self.model, other)
        return reference, fingerprint(reference.weights)

    @property
    def anchor(self) -> Anchor:
        """The reference as a model to run; before the first update the policy stands for itself."""
        return self.reference.anchor if self.reference is not None else Anchor(self.model)

    def _known(self, judged: Judged) -> JudgedSet:
        """A set with the reference's log-probabilities of it."""
        loss, context = self.algorithm.loss, self.config.max_tokens or self.policy.context_length
        others = mismatched_examples(judged, context) if loss.needs_mismatched else None
        if not self.algorithm.needs_reference or self.config.training.reference_refresh is not None:
            return JudgedSet(judged, None, others, None)
        cache = self.config.training.reference_cache
        folder = None if cache is None else Path(cache).expanduser()

        def known(examples: Examples) -> KnownLogprobs:
            return known_logprobs(self.learner, self.anchor, examples, folder, self._say)

        return JudgedSet(judged, known(judged.examples), others, None if others is None else known(others))

    # ------------------------------------------------------------------------------------------ a step

    @property
    def version(self) -> int:
        return self.learner.version

    def step(self, step: int, context: StepContext) -> StepReport:
        phases = Phases()
        units = self.order.take(self.batch_size)
        with phases("score"):
            compared = self._compared(self.data, units)
            constants = self._constants(compared, self.constants)
        batch = compared.batch
        context.send(BatchPrepared(step, batch.sequences, batch.tokens))
        with phases("update"):
            live = {"reference": self.anchor} if self.algorithm.needs_full_kl else None
            found = self.learner.forward_backward(
                batch, self._loss(compared, constants), want=self._want, anchors=live, unit="group"
            )
            measured = self.learner.optim_step(context.last_checkpoint)
            self._refresh(step)
        self.constants = constants
        metrics = self._figures(compared, constants, found.tokens["logprobs"])
        metrics = {**metrics, **found.metrics.means(), "loss": found.loss, **measured}
        self.falling.see(step, metrics)
        context.send(Updated(step, metrics))
        self.tokens += batch.tokens
        return StepReport(
            {
                **metrics,
                **phases.seconds,
                "epoch": self.order.epochs,
                "num_tokens": float(self.tokens),
                "tokens_per_second": batch.tokens / phases.seconds["time/update"],
            }
        )

    @cached_property
    def _want(self) -> Want:
        kl = self.algorithm.active_kl
        if kl is None or not self.algorithm.needs_full_kl:
            return Want()
        direction: Direction = "forward" if kl.direction == "forward" else "reverse"
        return Want(full_kl={"reference": direction})

    def _compared(self, data: JudgedSet, units: Any) -> Compared:
        judged = data.judged.take(units)
        first = data.judged.starts[np.asarray(units, np.int64)]
        sequences = np.concatenate(
            [np.arange(start, start + size) for start, size in zip(first, judged.sizes, strict=True)]
        )
        batch = judged.batch(range(len(judged)))
        reference = None if data.reference is None else data.reference.take(sequences)
        if reference is None and self.algorithm.needs_reference:
            reference = self.learner.forward(batch, anchor=self.anchor).scored
        others = None if data.mismatched is None else examples_batch(data.mismatched.take(sequences.tolist()))
        other_reference = None
        if others is not None:
            known = data.mismatched_reference
            other_reference = (
                known.take(sequences) if known else self.learner.forward(others, anchor=self.anchor).scored
            )
        items = compared_of(judged, self.algorithm.takes)
        return Compared(batch, items, reference, others, other_reference)

    def _constants(self, compared: Compared, before: Mapping[str, float]) -> Mapping[str, float]:
        """What the loss takes from the whole step."""
        loss, layout = self.algorithm.loss, compared.batch.layout
        logprobs = torch.zeros(layout.tokens)
        if loss.needs_step_logprobs:
            logprobs = self.learner.forward(compared.batch).scored
        ratios = None
        if compared.mismatched is not None:
            assert compared.mismatched_reference is not None
            others = self.learner.forward(compared.mismatched).scored - compared.mismatched_reference
            ratios = compared.mismatched.layout.sum(others, by="sequence")
        return loss.prepare(self._given(compared, logprobs, ratios), before)

    @staticmethod
    def _given(compared: Compared, logprobs: Tensor, mismatched: Tensor | None = None) -> Any:
        """What the loss is given of all the units."""
        layout = compared.batch.layout
        reference = None if compared.reference is None else layout.sum(compared.reference, by="sequence")
        sums = layout.sum(logprobs, by="sequence")
        return compared.items.compared(sums, reference, layout.count("sequence"), mismatched)

    def _loss(self, compared: Compared, constants: Mapping[str, float]) -> Callable[[Outputs, MicroBatch], Loss]:
        algorithm, whole = self.algorithm, compared.batch.layout

        def loss(outputs: Outputs, part: MicroBatch) -> Loss:
            logprobs = outputs.scored
            layout, places = whole.select(part.sequences)
            layout = layout.to(logprobs.device)
            reference = None if compared.reference is None else compared.reference[places].to(logprobs.device)
            sums = layout.sum(logprobs, by="sequence")
            ref_sums = None if reference is None else layout.sum(reference, by="sequence")
            items = compared.items.within(part.sequences)
            given = items.compared(sums, ref_sums, layout.count("sequence"))
            losses = algorithm.loss(given, constants)
            value = (items.weight.to(losses.device, losses.dtype) * losses).sum()
            measured = {}
            if algorithm.active_kl is not None:
                assert reference is not None
                full = outputs.full_kl.get("reference")
                kl = algorithm.regularize(logprobs, reference.to(logprobs.dtype), full)
                value = value + kl.sum() / whole.tokens
                measured["kl/reference"] = (
                    kl.detach().sum() / algorithm.active_kl.coefficient,
                    torch.tensor(float(len(kl))),
                )
            return Loss(value, Metrics(measured), {"logprobs": logprobs.detach()})

        return loss

    def _refresh(self, step: int) -> None:
        settings = self.config.training.reference_refresh
        if settings is not None and self.reference is not None and step % settings.every == 0:
            self.reference.refresh(settings.mix)

    def _figures(self, compared: Compared, constants: Mapping[str, float], logprobs: Tensor) -> dict[str, float]:
        given = self._given(compared, logprobs)
        return figures(
            self.algorithm, compared.items, given, constants, logprobs, compared.reference, compared.batch.layout
        )

    # ------------------------------------------------------------------------------------------ the rest

    def set_learning_rate(self, value: float) -> None:
        assert self.learner.optimizer is not None
        self.learner.optimizer.set_rate(value)

    def scale_learning_rate(self, factor: float) -> None:
        assert self.learner.optimizer is not None
        self.learner.optimizer.scale *= factor

    def evaluate(self, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        metrics: dict[str, float] = {}
        for name, data in self.held_out.items():
            metrics |= {f"eval/{name}/{key}": value for key, value in self._evaluated(data).items()}
        return metrics, []

    def _evaluated(self, data: JudgedSet) -> dict[str, float]:
        """Figures over all units of a set; the accuracy, which a run is judged by, with its interval and by slice."""
        units = range(len(data.judged))
        compared = self._compared(data, units)
        loss = self.algorithm.loss
        running = loss.needs_step_logprobs and bool(self.constants)
        constants = self.constants if running else self._constants(compared, {})
        logprobs = self.learner.forward(compared.batch).scored
        found = self._figures(compared, constants, logprobs)
        found.pop("completions/chosen_length", None)
        found.pop("completions/rejected_length", None)
        accuracy = found.pop("rewards/accuracies", float("nan"))
        if compared.items.second is None:
            return {"accuracy": accuracy, **found}
        right = outcomes(*loss.rewards(self._given(compared, logprobs)))
        mean, low, high = with_interval(right)
        by_slice = {}
        unit = torch.from_numpy(data.judged.unit)[compared.items.first]
        for name, chosen in slices_of(data.judged, units).items():
            inside = right[torch.from_numpy(chosen)[unit]]
            if len(inside):
                by_slice[f"accuracy/{_metric_name(name)}"] = float(inside.mean())
        return {"accuracy": mean, "accuracy_low": low, "accuracy_high": high, **found, **by_slice}

    def state_dict(self) -> dict[str, Any]:
        moved = self.reference is not None and self.config.training.reference_refresh is not None
        return {
            "optimizer": self.learner.state_dict(),
            "order": self.order.state_dict(),
            "tokens": self.tokens,
            "constants": dict(self.constants),
            "falling": self.falling.state_dict(),
            "mark": self.mark,
            "reference": self.reference.state_dict() if moved and self.reference is not None else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["mark"] != self.mark:
            raise InputError(
                "the reference model is not the one that the run started from: its weights differ",
                hint="resume with the model as it was before training, such as its folder",
            )
        self.learner.load_state_dict(state["optimizer"])
        self.order.load_state_dict(state["order"])
        self.tokens = int(state["tokens"])
        self.constants = dict(state["constants"])
        self.falling.load_state_dict(state["falling"])
        if self.reference is not None and state["reference"] is not None:
            self.reference.load_state_dict(state["reference"])


def _metric_name(text: str) -> str:
    """A slice as a part of a metric's name: letters, digits and some signs."""
    return "".join(character if character.isalnum() or character in "=_-.%@()" else "_" for character in text)
