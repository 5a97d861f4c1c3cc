"""Supervised fine-tuning: imitate completions, every trained token of an optimizer step with the same weight."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from reinlm.data import Example, PromptOrder, load_examples, load_prompts
from reinlm.loop import BatchPrepared, Callback, Loop, RunResult, StepContext, StepResult, Updated
from reinlm.loop.task import ALONE
from reinlm.models import Policy, micro_batches, score
from reinlm.records import Prompt
from reinlm.rewards import RewardSet, build_rewards
from reinlm.runs import MetricSums, Progress, RunFolder
from reinlm.training.config import SFTConfig, dump
from reinlm.training.evaluation import evaluate, evaluation_sampling, sample_rows
from reinlm.training.optimizer import Optimizer
from reinlm.training.setup import (
    MAY_CHANGE,
    Phases,
    TrainsPolicy,
    autocast,
    check_folder,
    computing,
    engine_for,
    loop_settings,
    observers,
    seed_everything,
    total_steps,
    training_policy,
)


class SFT(TrainsPolicy):
    """The task of `reinlm sft`: loss = -Σ log π(token) / N over the N trained tokens of a step."""

    kind = "sft"

    def __init__(
        self,
        config: SFTConfig,
        policy: Policy,
        examples: Sequence[Example],
        evaluation: Mapping[str, Sequence[Example] | Sequence[Prompt]],
        rewards: RewardSet | None,
    ) -> None:
        self.config = config
        self.policy = policy
        self.examples = examples
        self.evaluation = evaluation
        self.rewards = rewards
        batch = min(config.training.batch_size, len(examples))
        self.total_steps = total_steps(config.training, len(examples), batch)
        self.batch_size = batch
        self.order = PromptOrder(len(examples), seed=config.seed)
        self.optimizer = Optimizer(policy.model.parameters(), config.optimizer, self.total_steps)
        self.autocast = autocast(config.training, policy)
        self.tokens = 0

    def step(self, step: int, context: StepContext = ALONE) -> StepResult:
        phases = Phases()
        batch = [self.examples[index] for index in self.order.take(self.batch_size)]
        trained = sum(sum(example.trained) for example in batch)
        context.send(BatchPrepared(step, len(batch), trained))
        self.policy.model.train()
        with phases("update"):
            sums = self._measure(batch, train=True)
            means = sums.means()
            measured = self.optimizer.step(means["loss"], context.last_checkpoint)
        context.send(Updated(step, {**means, **measured}))
        self.tokens += trained
        metrics = {
            **means,
            **measured,
            **phases.seconds,
            "epoch": self.order.epochs,
            "num_tokens": float(self.tokens),
            "tokens_per_second": trained / phases.seconds["time/update"],
        }
        return StepResult(metrics)

    def set_learning_rate(self, value: float) -> None:
        self.optimizer.set_rate(value)

    def scale_learning_rate(self, factor: float) -> None:
        self.optimizer.scale *= factor

    def evaluate(self, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        self.policy.model.eval()
        metrics: dict[str, float] = {}
        samples: list[dict[str, Any]] = []
        for name, items in self.evaluation.items():
            if self.rewards is None:
                with torch.no_grad():
                    found = self._measure([item for item in items if isinstance(item, Example)], train=False).means()
            else:
                result = evaluate(
                    engine_for(self.policy, self.autocast),
                    [item for item in items if isinstance(item, Prompt)],
                    self.rewards,
                    sampling=evaluation_sampling(self.config.evaluation, self.policy.stops),
                    samples=self.config.evaluation.samples,
                    tokenizer=self.policy.tokenizer,
                    seed=self.config.seed,
                    tag=f"eval/{name}",
                    correct_above=self.config.evaluation.correct_above,
                )
                found = result.metrics
                samples = samples or sample_rows(result)
            metrics |= {f"eval/{name}/{key}": value for key, value in found.items()}
        return metrics, samples

    def _measure(self, batch: Sequence[Example], *, train: bool) -> MetricSums:
        """Loss, entropy and accuracy over the trained tokens; with `train` also the gradient."""
        settings = self.config.training
        total = sum(sum(example.trained) for example in batch)
        sums = MetricSums()
        lengths = [len(example.token_ids) for example in batch]
        for micro in micro_batches(lengths, settings.micro_batch_tokens, settings.packing):
            examples = [batch[index] for index in micro]
            with computing(self.policy, self.autocast):
                scores = score(
                    self.policy.model,
                    [example.token_ids for example in examples],
                    [[i for i, trained in enumerate(example.trained) if trained] for example in examples],
                    entropy=True,
                    chunk_tokens=settings.logprob_chunk,
                    packing=settings.packing,
                )
            if train:
                (-scores.logprobs.sum() / total).backward()
            assert scores.entropy is not None
            assert scores.likeliest is not None
            count = scores.logprobs.numel()
            sums.add("mean_token_accuracy", scores.likeliest.sum(), count)
            sums.add("loss", -scores.logprobs.detach().sum(), count)
            sums.add("entropy", scores.entropy.sum(), count)
        return sums

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "order": self.order.state_dict(), "tokens": self.tokens}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.order.load_state_dict(state["order"])
        self.tokens = int(state["tokens"])


def train_sft(
    config: SFTConfig,
    *,
    model: Any = None,
    command: str = "",
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    callbacks: Sequence[Callback] = (),
    reports: Sequence[Callback] = (),
) -> RunResult:
    """Run supervised fine-tuning. What the verb `sft` calls.

    `model` is a loaded model in place of `config.model`; `callbacks` are the user's, and `reports` come after them.
    """
    watching = observers(config, callbacks, reports)
    path = check_folder(config, "sft", resume=resume, overwrite=overwrite)
    progress = progress or Progress(quiet=True)
    seed_everything(config.seed)
    with contextlib.ExitStack() as stack:
        rewards = stack.enter_context(build_rewards(config.reward)) if config.reward else None
        policy = training_policy(config.model, model)
        limit = config.max_tokens or policy.context_length
        examples = load_examples(config.data, policy.tokenizer, max_tokens=limit)
        evaluation: dict[str, Any] = {}
        for name, data in config.evaluation.data.items():
            if rewards is None:
                evaluation[name] = load_examples(data, policy.tokenizer, max_tokens=limit).items
            else:
                evaluation[name] = load_prompts(data, policy.tokenizer, max_prompt_tokens=limit).items
                rewards.check(evaluation[name])
        for reason, count in examples.skipped.items():
            progress.say(f"skipped {count} rows: {reason}")
        with RunFolder.create(
            path,
            kind="sft",
            config=dump(config),
            command=command,
            resume=resume,
            overwrite=overwrite,
            may_change=MAY_CHANGE,
        ) as folder:
            task = SFT(config, policy, examples.items, evaluation, rewards)
            return Loop(task, loop_settings(config), folder, progress, watching).run()
