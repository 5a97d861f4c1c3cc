"""Direct preference learning: an optimizer step raises judged-better answers above worse ones, or labels good and bad ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reinlm.algorithms import PreferenceAlgorithm
from reinlm.data import Examples, Judged, RowOrder
from reinlm.loop import StepContext, StepReport
from reinlm.models import Policy
from reinlm.training.dpo_config import DPOConfig
from reinlm.training.judged_step import (
    compared_of,
    examples_batch,
    mismatched_examples,
    outcomes,
    slices_of,
    with_interval,
)
from reinlm.training.ledger import Resident
from reinlm.training.policy import TrainsPolicy
from reinlm.training.preference_update import Compared, PreferenceUpdater
from reinlm.training.reference_logprobs import KnownLogprobs, known_logprobs
from reinlm.training.setup import Phases, total_steps


@dataclass(frozen=True)
class JudgedSet:
    """Judged answers with what the reference says of them, computed before training."""

    judged: Judged
    reference: KnownLogprobs | None
    """None where the algorithm reads none, or where it is computed in each step."""
    mismatched: Examples | None
    """Every prompt with the answer to another one; None where the algorithm reads none."""
    mismatched_reference: KnownLogprobs | None


class LearnsPreferences(TrainsPolicy):
    """What the runs on given and on sampled answers have in common: a policy that `updater` trains."""

    kind = "dpo"
    updater: PreferenceUpdater

    @property
    def version(self) -> int:
        """Optimizer steps made."""
        return self.updater.learner.version

    def residents(self) -> list[Resident]:
        """The models in memory."""
        return self.updater.residents()

    def set_learning_rate(self, value: float) -> None:
        self.updater.optimizer.set_rate(value)

    def scale_learning_rate(self, factor: float) -> None:
        self.updater.optimizer.scale *= factor


class DPORun(LearnsPreferences):
    """What `reinlm dpo` runs on judged answers: one step learns from `batch_size` pairs, rankings or labelled answers."""

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
        self.batch_size = min(config.training.batch_size, len(judged))
        self.total_steps = total_steps(config.training, len(judged), self.batch_size)
        self.order = order or RowOrder(len(judged), seed=config.seed)
        self.updater = PreferenceUpdater(config, algorithm, policy, self.total_steps)
        self.model = self.updater.model
        self.data = self._known(judged)
        self.held_out = {name: self._known(one) for name, one in held_out.items()}
        self.updater.release_reference()

    def _known(self, judged: Judged) -> JudgedSet:
        """A set with the reference's log-probabilities of it."""
        loss, context = self.algorithm.loss, self.config.max_tokens or self.policy.context_length
        others = mismatched_examples(judged, context) if loss.needs_mismatched else None
        if not self.algorithm.needs_reference or self.config.training.reference_refresh is not None:
            return JudgedSet(judged, None, others, None)
        cache = self.config.training.reference_cache
        folder = None if cache is None else Path(cache).expanduser()

        def known(examples: Examples) -> KnownLogprobs:
            return known_logprobs(self.updater.learner, self.updater.anchor, examples, folder, self._say)

        return JudgedSet(judged, known(judged.examples), others, None if others is None else known(others))

    def step(self, step: int, context: StepContext) -> StepReport:
        phases = Phases()
        units = self.order.take(self.batch_size)
        before = self.updater.tokens
        metrics = self.updater.update(step, context, phases, lambda: self._compared(self.data, units))
        self.updater.refresh(step)
        return StepReport(
            {
                **metrics,
                **phases.seconds,
                "epoch": self.order.epochs,
                "num_tokens": float(self.updater.tokens),
                "tokens_per_second": (self.updater.tokens - before) / phases.seconds["time/update"],
            }
        )

    def _compared(self, data: JudgedSet, units: Any) -> Compared:
        judged = data.judged.take(units)
        first = data.judged.starts[np.asarray(units, np.int64)]
        sequences = np.concatenate(
            [np.arange(start, start + size) for start, size in zip(first, judged.sizes, strict=True)]
        )
        batch = judged.batch(range(len(judged)))
        updater = self.updater
        reference = updater.reference_of(batch) if data.reference is None else data.reference.take(sequences)
        others = None if data.mismatched is None else examples_batch(data.mismatched.take(sequences.tolist()))
        other_reference = None
        if others is not None:
            known = data.mismatched_reference
            other_reference = known.take(sequences) if known else updater.reference_of(others)
        return Compared(batch, compared_of(judged, self.algorithm.takes), reference, others, other_reference)

    def evaluate(self, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        metrics: dict[str, float] = {}
        for name, data in self.held_out.items():
            metrics |= {f"eval/{name}/{key}": value for key, value in self._evaluated(data).items()}
        return metrics, []

    def _evaluated(self, data: JudgedSet) -> dict[str, float]:
        """Figures over all units of a set; the accuracy, which a run is judged by, with its interval and by slice."""
        units, updater = range(len(data.judged)), self.updater
        compared = self._compared(data, units)
        loss = self.algorithm.loss
        running = loss.needs_step_logprobs and bool(updater.constants)
        constants = updater.constants if running else updater.constants_of(compared, {})
        logprobs = updater.learner.forward(compared.batch).scored
        found = updater.figures(compared, constants, logprobs)
        found.pop("completions/chosen_length", None)
        found.pop("completions/rejected_length", None)
        accuracy = found.pop("rewards/accuracies", float("nan"))
        if compared.items.second is None:
            return {"accuracy": accuracy, **found}
        right = outcomes(*loss.rewards(updater.given(compared, logprobs)))
        mean, low, high = with_interval(right)
        by_slice = {}
        unit = torch.from_numpy(data.judged.unit)[compared.items.first]
        for name, chosen in slices_of(data.judged, units).items():
            inside = right[torch.from_numpy(chosen)[unit]]
            if len(inside):
                by_slice[f"accuracy/{_metric_name(name)}"] = float(inside.mean())
        return {"accuracy": mean, "accuracy_low": low, "accuracy_high": high, **found, **by_slice}

    def state_dict(self) -> dict[str, Any]:
        return {**self.updater.state_dict(), "order": self.order.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.updater.load_state_dict(state)
        self.order.load_state_dict(state["order"])


def _metric_name(text: str) -> str:
    """A slice as a part of a metric's name: letters, digits and some signs."""
    return "".join(character if character.isalnum() or character in "=_-.%@()" else "_" for character in text)
