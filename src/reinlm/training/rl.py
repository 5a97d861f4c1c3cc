"""Reinforcement learning: collect → score → filter → advantages → passes of minibatches in micro-batches → step."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from reinlm.algorithms import Algorithm, AlgorithmState, resolve
from reinlm.data import PromptOrder, load_prompts
from reinlm.errors import InputError
from reinlm.models import Policy, disable_dropout, micro_batches, score
from reinlm.objectives import Signals
from reinlm.records import Prompt, TrainBatch, train_batch
from reinlm.rewards import RewardSet, TrainerState, build_rewards
from reinlm.rollouts import check_trainable
from reinlm.runs import MetricSums, RolloutLog, RunFolder
from reinlm.training.collection import Collector, rollout_rows
from reinlm.training.config import RLConfig, dump
from reinlm.training.evaluation import evaluate, evaluation_sampling, sample_rows
from reinlm.training.loop import Loop, RunResult
from reinlm.training.optimizer import Optimizer
from reinlm.training.progress import Progress
from reinlm.training.setup import (
    MAY_CHANGE,
    Phases,
    autocast,
    check_folder,
    computing,
    engine_for,
    prompt_room,
    seed_everything,
    total_steps,
    training_policy,
)


class RL:
    """The task of `reinlm rl`: one step collects a batch of groups and makes `passes · minibatches` updates of it."""

    kind = "rl"

    def __init__(
        self,
        config: RLConfig,
        algorithm: Algorithm,
        policy: Policy,
        reference: torch.nn.Module | None,
        prompts: Sequence[Prompt],
        evaluation: Mapping[str, Sequence[Prompt]],
        rewards: RewardSet,
    ) -> None:
        self.config = config
        self.algorithm = algorithm
        self.policy = policy
        self.reference = reference
        self.evaluation = evaluation
        self.rewards = rewards
        self.total_steps = total_steps(config.training, len(prompts), config.rollout.groups)
        updates = self.total_steps * config.training.passes * config.training.minibatches
        self.optimizer = Optimizer(policy.model, config.optimizer, updates)
        self.state: AlgorithmState = algorithm.initial_state()
        self.autocast = autocast(config.training, policy)
        self.engine = engine_for(policy, self.autocast, config.rollout.max_running)
        self.reference_mark = fingerprint(reference or policy.model) if algorithm.needs_reference else None
        order = PromptOrder(len(prompts), seed=config.seed)
        self.collector = Collector(config.rollout, algorithm, self.engine, policy, prompts, order, rewards, config.seed)
        self.rollouts: RolloutLog | None = None
        self.stop_reason: str | None = None
        self.last_checkpoint = "none yet"
        self.tokens = 0

    def step(self, step: int) -> dict[str, float]:
        phases = Phases()
        self.engine.update(None, self.state.updates)
        trainer = TrainerState(global_step=step - 1, max_steps=self.total_steps, epoch=self.collector.order.epochs)
        collected = self.collector.collect(step, trainer, phases)
        metrics = dict(collected.metrics)
        advantages: Tensor | None = None
        if collected.kept:
            batch = train_batch(collected.kept, collected.shaping)
            advantages = self.algorithm.advantage(batch.feedback)
            metrics["advantage/std"] = float(advantages.std(correction=0)) if len(advantages) else 0.0
            metrics |= self._train(step, batch, advantages, phases)
        else:
            self.stop_reason = collected.nothing_left
        every = self.config.run.rollouts_every
        if self.rollouts is not None and every and (step == 1 or step % every == 0):
            self.rollouts.write(step, rollout_rows(collected.kept or collected.sampled, advantages))
        return {**metrics, **self._totals(metrics, phases), **phases.seconds}

    def _totals(self, metrics: Mapping[str, float], phases: Phases) -> dict[str, float]:
        tokens = metrics["samples"] * metrics["completions/mean_length"]
        self.tokens += round(tokens)
        seconds = sum(phases.seconds.values())
        return {
            "epoch": self.collector.order.epochs,
            "num_tokens": float(self.tokens),
            "tokens_per_second": tokens / seconds,
            "samples_per_second": metrics["samples"] / seconds,
        }

    # ------------------------------------------------------------------------------------------ update

    def _train(self, step: int, batch: TrainBatch, advantages: Tensor, phases: Phases) -> dict[str, float]:
        """All updates of one collected batch."""
        settings = self.config.training
        with phases("score"):
            several = settings.passes * settings.minibatches > 1
            old = self._logprobs(self.policy.model, batch) if several else None
            ref = self._reference_logprobs(batch) if self.algorithm.needs_reference else None
        sums = MetricSums()
        measured: dict[str, float] = {}
        with phases("update"):
            for number in range(settings.passes):
                for sequences in self._minibatches(batch, random.Random(f"{self.config.seed}/{step}/{number}")):
                    layout, tokens = batch.layout.select(sequences)
                    signals = self.algorithm.prepare(
                        layout,
                        advantages[tokens],
                        old_logprobs=None if old is None else old[tokens],
                        rollout_logprobs=batch.rollout_logprobs[tokens],
                        ref_logprobs=None if ref is None else ref[tokens],
                    )
                    loss = self._backward(batch, sequences, signals, sums)
                    sums.add("loss", loss, 1)
                    measured = self.optimizer.step(loss, self.last_checkpoint)
                    if "grad_norm" in measured:
                        sums.add("grad_norm", measured.pop("grad_norm"), 1)
                    self.state = self.algorithm.advance(self.state, measured)
        return sums.means() | measured

    def _minibatches(self, batch: TrainBatch, order: random.Random) -> list[Tensor]:
        """Whole groups in a fresh order, as sequence indices; answers without a reward are left out."""
        layout = batch.layout
        group = layout.group_of_episode[layout.episode_of_sequence]
        usable = ~batch.feedback.rewards.isnan()[layout.episode_of_sequence]
        groups = list(range(layout.groups))
        order.shuffle(groups)
        count = min(self.config.training.minibatches, len(groups))
        parts = [torch.tensor(groups[part::count]) for part in range(count)]
        chosen = [torch.nonzero(usable & torch.isin(group, part)).flatten() for part in parts]
        return [sequences for sequences in chosen if len(sequences)]

    def _backward(self, batch: TrainBatch, sequences: Tensor, signals: Signals, sums: MetricSums) -> float:
        """The gradient of one optimizer step, micro-batch by micro-batch; returns its loss."""
        model = self.policy.model
        model.train(self.config.model.gradient_checkpointing)
        total = torch.zeros((), dtype=torch.float64)
        for micro in self._micro_batches(batch, sequences.tolist()):
            rows = [int(sequences[index]) for index in micro]
            scores = self._score(model, batch, rows, entropy=True)
            part = signals.select(torch.tensor(micro)).to(scores.logprobs.device, scores.logprobs.dtype)
            loss = self.algorithm.loss(scores.logprobs, part, self.state)
            loss.value.backward()
            total += loss.value.detach().double().cpu()
            assert scores.entropy is not None
            sums.add("entropy", scores.entropy.sum(), scores.entropy.numel())
            for name, (value, count) in loss.metrics.sums.items():
                sums.add(name, value, count)
            for name, value in loss.metrics.maxima.items():
                sums.maximum(name, value)
        return float(total)

    def _micro_batches(self, batch: TrainBatch, sequences: Sequence[int]) -> list[list[int]]:
        """Places in `sequences`, without those that hold no scored token."""
        settings = self.config.training
        scored = [place for place, index in enumerate(sequences) if batch.positions[index]]
        lengths = [len(batch.sequences[sequences[place]]) for place in scored]
        parts = micro_batches(lengths, settings.micro_batch_tokens, settings.packing)
        return [[scored[index] for index in part] for part in parts]

    def _score(self, model: torch.nn.Module, batch: TrainBatch, rows: Sequence[int], *, entropy: bool = False) -> Any:
        settings = self.config.training
        with computing(self.policy, self.autocast):
            return score(
                model,
                [batch.sequences[row] for row in rows],
                [batch.positions[row] for row in rows],
                temperature=self.config.rollout.temperature,
                entropy=entropy,
                chunk_tokens=settings.logprob_chunk,
                packing=settings.packing,
            )

    @torch.no_grad()
    def _logprobs(self, model: torch.nn.Module, batch: TrainBatch) -> Tensor:
        """Log-probabilities of every scored token of the batch, on the CPU."""
        model.eval()
        double = self.policy.model.dtype == torch.float64
        logprobs = torch.zeros(batch.layout.tokens, dtype=torch.float64 if double else torch.float32)
        for rows in self._micro_batches(batch, range(len(batch.sequences))):
            _, tokens = batch.layout.select(torch.tensor(rows))
            logprobs[tokens] = self._score(model, batch, rows).logprobs.to("cpu", logprobs.dtype)
        return logprobs

    def _reference_logprobs(self, batch: TrainBatch) -> Tensor:
        """The reference model is a frozen copy, or the policy with its adapter switched off."""
        if self.reference is not None:
            return self._logprobs(self.reference, batch)
        with cast(Any, self.policy.model).disable_adapter():
            return self._logprobs(self.policy.model, batch)

    # ------------------------------------------------------------------------------------------ the rest

    def evaluate(self, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        metrics: dict[str, float] = {}
        samples: list[dict[str, Any]] = []
        for name, prompts in self.evaluation.items():
            result = evaluate(
                self.engine,
                prompts,
                self.rewards,
                sampling=evaluation_sampling(self.config.evaluation, self.policy.stops, self.config.rollout),
                samples=self.config.evaluation.samples,
                tokenizer=self.policy.tokenizer,
                seed=self.config.seed,
                tag=f"eval/{name}",
                correct_above=self.config.evaluation.correct_above,
                state=TrainerState(global_step=step, max_steps=self.total_steps),
            )
            metrics |= {f"eval/{name}/{key}": value for key, value in result.metrics.items()}
            samples = samples or sample_rows(result)
        return metrics, samples

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer.state_dict(),
            "algorithm": dataclasses.asdict(self.state),
            "order": self.collector.order.state_dict(),
            "tokens": self.tokens,
            "reference": self.reference_mark,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["reference"] != self.reference_mark:
            raise InputError(
                "the reference model is not the one that the run started from: its weights differ",
                hint="resume with the model as it was before training, such as its folder",
            )
        self.optimizer.load_state_dict(state["optimizer"])
        self.state = AlgorithmState(**state["algorithm"])
        self.collector.order.load_state_dict(state["order"])
        self.tokens = int(state["tokens"])


def train_rl(
    config: RLConfig,
    *,
    model: Any = None,
    algorithm: Algorithm | None = None,
    command: str = "",
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Run reinforcement learning. What the verb `rl` calls.

    `model` is a loaded model in place of `config.model`, `algorithm` a composed one in place of `config.algorithm`.
    """
    algorithm = algorithm or resolve(config.algorithm)
    check_settings(config, algorithm)
    path = check_folder(config, "rl", resume=resume, overwrite=overwrite)
    progress = progress or Progress(quiet=True)
    seed_everything(config.seed)
    with build_rewards(config.reward) as rewards:
        policy = training_policy(config.model, model)
        disable_dropout(policy.model)
        room = prompt_room(policy, config.rollout.max_new_tokens)
        prompts = load_prompts(config.data, policy.tokenizer, max_prompt_tokens=room)
        rewards.check(prompts.items)
        evaluation = {
            name: load_prompts(data, policy.tokenizer, max_prompt_tokens=room).items
            for name, data in config.evaluation.data.items()
        }
        for items in evaluation.values():
            rewards.check(items)
        if config.rollout.groups > len(prompts.items):
            raise InputError(
                f"a batch of {config.rollout.groups} groups needs as many prompts, and the data hold {len(prompts.items)}",
                hint="lower rollout.batch_size, raise rollout.group_size, or give more data",
            )
        for reason, count in prompts.skipped.items():
            progress.say(f"skipped {count} rows: {reason}")
        with RunFolder.create(
            path,
            kind="rl",
            config=dump(config),
            command=command,
            resume=resume,
            overwrite=overwrite,
            may_change=MAY_CHANGE,
        ) as folder:
            reference = frozen_copy(policy) if algorithm.needs_reference else None
            task = RL(config, algorithm, policy, reference, prompts.items, evaluation, rewards)
            return Loop(task, config, folder, progress).run()


def check_settings(config: RLConfig, algorithm: Algorithm) -> None:
    """Refuse settings that contradict one another, before anything is loaded."""
    check_trainable(config.rollout)
    if algorithm.advantage.needs_group and config.rollout.group_size < 2:
        raise InputError(
            f"{algorithm.name} compares the answers within a group, and rollout.group_size is {config.rollout.group_size}",
            hint="set rollout.group_size to 2 or more",
        )
    for shaper in algorithm.shapers:
        shaper(torch.tensor([1]), config.rollout.max_new_tokens)
    if config.model.lora is not None and config.model.lora.dropout > 0:
        raise InputError(
            f"model.lora.dropout {config.model.lora.dropout} has no effect: RL scores what was sampled, without dropout",
            hint="set model.lora.dropout=0",
        )


def frozen_copy(policy: Policy) -> torch.nn.Module | None:
    """The reference model; None where the policy is an adapter, which can be switched off instead."""
    if hasattr(policy.model, "disable_adapter"):
        return None
    reference = copy.deepcopy(policy.model).eval()
    return reference.requires_grad_(False)


def fingerprint(model: torch.nn.Module) -> str:
    """Tells frozen weights from others: a hash of up to 64 values of each. Device and trained weights are no part of it."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            flat = weight.detach().flatten()
            places = torch.linspace(0, len(flat) - 1, min(64, len(flat)), dtype=torch.float64).long()
            values = flat[places.to(flat.device)].double().cpu()
            digest.update(f"{name} {tuple(weight.shape)} {values.tolist()}".encode())
    return digest.hexdigest()
