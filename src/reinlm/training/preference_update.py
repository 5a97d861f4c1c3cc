"""What one optimizer step of direct preference learning does: the same for given pairs and for those that were just sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from reinlm.algorithms import PreferenceAlgorithm
from reinlm.batches import TokenBatch
from reinlm.errors import InputError
from reinlm.loop import BatchPrepared, StepContext, Updated
from reinlm.models import Anchor, Outputs, Policy, Reference, TokenModel, Want, disable_dropout
from reinlm.objectives import Loss, Metrics
from reinlm.training.anchors import fingerprint
from reinlm.training.dpo_config import DPOConfig
from reinlm.training.judged_step import Items, figures
from reinlm.training.learner import Learner, MicroBatch
from reinlm.training.ledger import Resident, anchors_of, policy_of
from reinlm.training.optimizer import Optimizer
from reinlm.training.policy import same_tokens
from reinlm.training.setup import Phases, autocast

if TYPE_CHECKING:
    from reinlm.models.token_model import Direction


class Compared(NamedTuple):
    """Some pairs or labelled answers, with all of a step that is known before the policy is run."""

    batch: TokenBatch
    items: Items
    reference: Tensor | None
    """[tokens] log π_ref of every scored token."""
    mismatched: TokenBatch | None = None
    """Every prompt with the answer to another one, where the loss reads it."""
    mismatched_reference: Tensor | None = None


class PreferenceUpdater:
    """The learner of a policy, its reference, and the loss of a `PreferenceAlgorithm`.

    Args:
        updates: optimizer steps of the run, over which the rate's schedule goes.
        live: answers are not known before training, so that the reference is run in every step.
    """

    def __init__(
        self,
        config: DPOConfig,
        algorithm: PreferenceAlgorithm,
        policy: Policy,
        updates: int,
        *,
        live: bool = False,
    ) -> None:
        self.config = config
        self.algorithm = algorithm
        self.policy = policy
        settings = config.training
        if not settings.dropout:
            disable_dropout(policy.model)
        self.model = TokenModel(policy.model, packing=settings.packing, chunk_tokens=settings.logprob_chunk)
        self.learner = Learner(
            self.model,
            Optimizer(policy.model.parameters(), config.optimizer, updates),
            micro_batch_tokens=settings.micro_batch_tokens,
            train_mode=settings.dropout or config.model.gradient_checkpointing,
            autocast=autocast(settings, policy),
        )
        moves = settings.reference_refresh is not None
        self.live = algorithm.needs_reference and (live or moves or algorithm.needs_full_kl)
        """Whether the reference is run in every step: answers are new, it moves, or its whole distribution is read."""
        self.reference, self.mark = self._reference()
        self.constants: Mapping[str, float] = {}
        self.tokens = 0

    # ------------------------------------------------------------------------------------------ the reference

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

    def release_reference(self) -> None:
        """Free the reference where no step runs it: its log-probabilities are known by now."""
        if not self.live:
            self.reference = None

    def refresh(self, step: int) -> None:
        """Let the reference follow the policy, where it is to do so after this step."""
        settings = self.config.training.reference_refresh
        if settings is not None and self.reference is not None and step % settings.every == 0:
            self.reference.refresh(settings.mix)

    def reference_of(self, batch: TokenBatch) -> Tensor | None:
        """[tokens] log π_ref of every scored token; None where nothing reads it."""
        return self.learner.forward(batch, anchor=self.anchor).scored if self.algorithm.needs_reference else None

    # ------------------------------------------------------------------------------------------ an update

    def update(self, step: int, context: StepContext, phases: Phases, make: Callable[[], Compared]) -> dict[str, float]:
        """One optimizer step on what `make` gives; its figures."""
        with phases("score"):
            compared = make()
            constants = self.constants_of(compared, self.constants)
        batch = compared.batch
        context.send(BatchPrepared(step, batch.sequences, batch.tokens))
        with phases("update"):
            live = {"reference": self.anchor} if self.algorithm.needs_full_kl else None
            found = self.learner.forward_backward(
                batch, self._loss(compared, constants), want=self._want, anchors=live, unit="group"
            )
            measured = self.learner.optim_step(context.last_checkpoint)
        self.constants = constants
        metrics = self.figures(compared, constants, found.tokens["logprobs"])
        metrics = {**metrics, **found.metrics.means(), "loss": found.loss, **measured}
        context.send(Updated(step, metrics))
        self.tokens += batch.tokens
        return metrics

    @cached_property
    def _want(self) -> Want:
        kl = self.algorithm.active_kl
        if kl is None or not self.algorithm.needs_full_kl:
            return Want()
        direction: Direction = "forward" if kl.direction == "forward" else "reverse"
        return Want(full_kl={"reference": direction})

    def constants_of(self, compared: Compared, before: Mapping[str, float]) -> Mapping[str, float]:
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
        return loss.prepare(self.given(compared, logprobs, ratios), before)

    @staticmethod
    def given(compared: Compared, logprobs: Tensor, mismatched: Tensor | None = None) -> Any:
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

    def figures(self, compared: Compared, constants: Mapping[str, float], logprobs: Tensor) -> dict[str, float]:
        """What is logged of them, from log-probabilities without a gradient."""
        given = self.given(compared, logprobs)
        return figures(
            self.algorithm, compared.items, given, constants, logprobs, compared.reference, compared.batch.layout
        )

    # ------------------------------------------------------------------------------------------ the rest

    @property
    def optimizer(self) -> Optimizer:
        """The policy's."""
        assert self.learner.optimizer is not None
        return self.learner.optimizer

    def residents(self) -> list[Resident]:
        """The models in memory, and a reference that is none as its log-probabilities are known."""
        anchors = {} if self.reference is None else {"reference": self.reference.anchor}
        found = [policy_of(self.policy.model, self.optimizer), *anchors_of(anchors)]
        if self.algorithm.needs_reference and self.reference is None:
            found.append(
                Resident("reference", [], note="not in memory, as its log-probabilities of the data are known")
            )
        return found

    def state_dict(self) -> dict[str, Any]:
        """All that moves; the reference where it does."""
        moved = self.reference is not None and self.config.training.reference_refresh is not None
        return {
            "optimizer": self.learner.state_dict(),
            "tokens": self.tokens,
            "constants": dict(self.constants),
            "mark": self.mark,
            "reference": self.reference.state_dict() if moved and self.reference is not None else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken. Raises InputError for a reference with other weights."""
        if state["mark"] != self.mark:
            raise InputError(
                "the reference model is not the one that the run started from: its weights differ",
                hint="resume with the model as it was before training, such as its folder",
            )
        self.learner.load_state_dict(state["optimizer"])
        self.tokens = int(state["tokens"])
        self.constants = dict(state["constants"])
        if self.reference is not None and state["reference"] is not None:
            self.reference.load_state_dict(state["reference"])
