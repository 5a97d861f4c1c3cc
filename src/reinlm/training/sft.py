"""Supervised fine-tuning: imitate completions, every trained token of an optimizer step with the same weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from reinlm.batches import TokenBatch, example_batch
from reinlm.config import Config
from reinlm.data import Examples, RowOrder
from reinlm.errors import InputError
from reinlm.loop import BatchPrepared, StepContext, StepReport, Updated
from reinlm.models import Outputs, Policy, TokenModel, Want
from reinlm.objectives import Loss, Metrics
from reinlm.rollouts import EvalRolloutConfig
from reinlm.training.config import SFTConfig
from reinlm.training.evaluation import Evaluator
from reinlm.training.held_out import held_out_loss
from reinlm.training.learner import Learner, LossFunction, MicroBatch
from reinlm.training.ledger import Resident, policy_of
from reinlm.training.optimizer import Optimizer
from reinlm.training.policy import TrainsPolicy
from reinlm.training.setup import Phases, autocast, total_steps


def sft_loss(tokens: int) -> LossFunction:
    """-Σ log π(token) / N over the N scored tokens of a step, with `loss`, `entropy` and `mean_token_accuracy`."""

    def loss(outputs: Outputs, part: MicroBatch) -> Loss:
        assert outputs.entropy is not None
        assert outputs.likeliest is not None
        logprobs = outputs.scored
        count = torch.tensor(float(logprobs.numel()))
        sums = {
            "mean_token_accuracy": (outputs.likeliest.sum(), count),
            "loss": (-logprobs.detach().sum(), count),
            "entropy": (outputs.entropy.detach().sum(), count),
        }
        return Loss(-logprobs.sum() / tokens, Metrics(sums))

    return loss


class SFTRun(TrainsPolicy):
    """What `reinlm sft` runs: one step imitates `batch_size` examples."""

    kind = "sft"

    def __init__(
        self,
        config: SFTConfig,
        policy: Policy,
        examples: Examples,
        evaluator: Evaluator | None,
        held_out: Mapping[str, Examples],
        order: RowOrder | None = None,
    ) -> None:
        self.config = config
        self.policy = policy
        self.examples = examples
        self.evaluator = evaluator
        self.held_out = held_out
        settings = config.training
        self.batch_size = min(settings.batch_size, len(examples))
        self.total_steps = total_steps(settings, len(examples), self.batch_size)
        self.order = order or RowOrder(len(examples), seed=config.seed)
        self.model = TokenModel(policy.model, packing=settings.packing, chunk_tokens=settings.logprob_chunk)
        self.learner = Learner(
            self.model,
            Optimizer(policy.model.parameters(), config.optimizer, self.total_steps),
            micro_batch_tokens=settings.micro_batch_tokens,
            autocast=autocast(settings, policy),
        )
        self.tokens = 0

    @property
    def version(self) -> int:
        return self.learner.version

    def step(self, step: int, context: StepContext) -> StepReport:
        phases = Phases()
        batch = _batch(self.examples.take(self.order.take(self.batch_size)))
        context.send(BatchPrepared(step, batch.sequences, batch.tokens))
        with phases("update"):
            found = self.learner.forward_backward(batch, sft_loss(batch.tokens), want=Want(entropy=True))
            measured = self.learner.optim_step(context.last_checkpoint)
        metrics = {**found.metrics.means(), **measured}
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

    def set_learning_rate(self, value: float) -> None:
        assert self.learner.optimizer is not None
        self.learner.optimizer.set_rate(value)

    def scale_learning_rate(self, factor: float) -> None:
        assert self.learner.optimizer is not None
        self.learner.optimizer.scale *= factor

    def evaluate(self, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        if self.evaluator is not None:
            return self.evaluator.evaluate(version=self.version)
        metrics: dict[str, float] = {}
        for name, examples in self.held_out.items():
            found = held_out_loss(self.learner, examples)
            metrics |= {f"eval/{name}/{key}": value for key, value in found.items()}
        return metrics, []

    def residents(self) -> list[Resident]:
        """The models in memory."""
        return [policy_of(self.policy.model, self.learner.optimizer)]

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.learner.state_dict(), "order": self.order.state_dict(), "tokens": self.tokens}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(state["optimizer"])
        self.order.load_state_dict(state["order"])
        self.tokens = int(state["tokens"])


def _batch(examples: Examples) -> TokenBatch:
    return example_batch(examples.token_ids, examples.trained, examples.offsets)


def check_sft(config: SFTConfig, *, samples: bool) -> None:
    """Refuse settings without an effect, before anything is loaded.

    Args:
        samples: whether evaluation samples answers: there is a reward, or an environment of several turns.
    """
    settings = config.evaluation
    for name in ("environment", "reward"):
        if config.changed(name) and not settings.data:
            raise InputError(
                f"{name} has no effect: sft scores answers in evaluation alone, and evaluation.data is not given",
                hint=f"set evaluation.data, or leave {name} out",
            )
    if not samples:
        _refuse_changed("rollout", config.rollout, EvalRolloutConfig.model_fields)
        _refuse_changed("evaluation", settings, OF_SAMPLES)
    for name in ("rollouts_every", "rollouts_max"):
        if config.run.changed(name) and config.run.rollouts_every:
            raise InputError(f"run.{name} has no effect: sft has no rollouts to write", hint=f"leave run.{name} out")


OF_SAMPLES = ("samples", "temperature", "top_p", "top_k", "max_new_tokens", "correct_above")
"""Settings of an evaluation that samples answers."""


def _refuse_changed(section: str, part: Config, names: Iterable[str]) -> None:
    for name in names:
        if part.changed(name):
            raise InputError(
                f"{section}.{name} {getattr(part, name)} has no effect: nothing is sampled, evaluation measures the loss",
                hint="set reward, or an environment that gives rewards",
            )
