"""Reinforcement learning: collect → score → filter → advantages → passes of minibatches in micro-batches → step."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from reinlm.algorithms import Algorithm, AlgorithmState, resolve
from reinlm.data import PromptOrder, load_prompts
from reinlm.errors import InputError
from reinlm.loop import BatchPrepared, Callback, GroupScored, Loop, RunResult, StepContext, StepResult, Updated
from reinlm.loop.task import ALONE
from reinlm.models import ModelConfig, Policy, Reference, ValueModel, disable_dropout
from reinlm.records import Prompt, train_batch
from reinlm.rewards import RewardSet, TrainerState, build_rewards
from reinlm.rollouts import check_trainable
from reinlm.runs import Progress, RunFolder
from reinlm.training.collection import Collector, rollout_rows
from reinlm.training.config import CriticConfig, RLConfig, dump
from reinlm.training.evaluation import evaluate, evaluation_sampling, sample_rows
from reinlm.training.optimizer import Optimizer
from reinlm.training.replay import Replay
from reinlm.training.setup import (
    MAY_CHANGE,
    Phases,
    TrainsPolicy,
    autocast,
    check_folder,
    engine_for,
    loop_settings,
    observers,
    prompt_room,
    seed_everything,
    total_steps,
    training_policy,
)
from reinlm.training.update import Updater


class RL(TrainsPolicy):
    """The task of `reinlm rl`: one step collects a batch of groups and makes `passes · minibatches` updates of it."""

    kind = "rl"

    def __init__(
        self,
        config: RLConfig,
        algorithm: Algorithm,
        policy: Policy,
        prompts: Sequence[Prompt],
        evaluation: Mapping[str, Sequence[Prompt]],
        rewards: RewardSet,
    ) -> None:
        self.config = config
        self.algorithm = algorithm
        self.policy = policy
        self.reference = Reference(policy.model) if algorithm.needs_reference else None
        self.evaluation = evaluation
        self.rewards = rewards
        self.total_steps = total_steps(config.training, len(prompts), config.rollout.groups)
        self.autocast = autocast(config.training, policy)
        self.engine = engine_for(policy, self.autocast, config.rollout.max_running)
        self.reference_mark = fingerprint(self.reference.weights) if self.reference else None
        self.updater = self._updater()
        order = PromptOrder(len(prompts), seed=config.seed)
        self.collector = Collector(config.rollout, algorithm, self.engine, policy, prompts, order, rewards, config.seed)
        self.replay = Replay(config.training.replay, config.seed) if config.training.replay else None
        self.tokens = 0

    def _updater(self) -> Updater:
        config, weights = self.config, self.policy.model.parameters()
        updates = self.total_steps * config.training.passes * config.training.minibatches
        optimizer = Optimizer(weights, config.optimizer, updates)
        critic = critic_optimizer = None
        if self.algorithm.critic is not None:
            settings = config.critic or CriticConfig()
            critic = value_model(settings, config.model, self.policy)
            own = settings.optimizer or config.optimizer.model_copy(update={"warmup_steps": 0})
            critic_optimizer = Optimizer(critic.trainable(), own, updates)
        return Updater(
            config,
            self.algorithm,
            self.policy,
            self.reference,
            critic,
            optimizer,
            critic_optimizer,
            self.autocast,
        )

    @property
    def state(self) -> AlgorithmState:
        """What moves while the algorithm runs."""
        return self.updater.state

    def step(self, step: int, context: StepContext = ALONE) -> StepResult:
        phases = Phases()
        self.engine.update(None, self.state.updates)
        trainer = TrainerState(global_step=step - 1, max_steps=self.total_steps, epoch=self.collector.order.epochs)
        collected = self.collector.collect(step, trainer, phases)
        for group in collected.sampled:
            context.send(GroupScored(step, group))
        metrics = dict(collected.metrics)
        advantages: Tensor | None = None
        if collected.kept:
            earlier = self.replay.draw(step) if self.replay else []
            groups = [*collected.kept, *earlier]
            shaping = [*collected.shaping, *self.collector.shape(earlier)]
            batch = train_batch(groups, shaping if self.algorithm.shapers else None)
            with phases("score"):
                prepared, found = self.updater.prepare(batch, replayed=len(earlier))
            advantages = prepared.advantages
            array = advantages.detach().cpu().numpy()
            context.send(BatchPrepared(step, len(batch.sequences), batch.layout.tokens, tuple(groups), array))
            with phases("update"):
                found |= self.updater.update(step, batch, prepared, context.last_checkpoint)
                self._refresh(step)
            context.send(Updated(step, found))
            metrics |= found
            if self.replay is not None:
                metrics["groups/replayed"] = float(len(earlier))
                self.replay.add(step, collected.kept)
        every = self.config.run.rollouts_every
        if context.rollouts is not None and every and (step == 1 or step % every == 0):
            context.rollouts.write(step, rollout_rows(collected.kept or collected.sampled, advantages))
        metrics |= {**self._totals(metrics, phases), **phases.seconds}
        return StepResult(metrics, stop=collected.nothing_left)

    def set_learning_rate(self, value: float) -> None:
        self.updater.optimizer.set_rate(value)

    def scale_learning_rate(self, factor: float) -> None:
        self.updater.optimizer.scale *= factor

    def _refresh(self, step: int) -> None:
        refresh = self.config.training.reference_refresh
        if self.reference is not None and refresh is not None and step % refresh.every == 0:
            self.reference.refresh(refresh.mix)

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
        refreshed = self.config.training.reference_refresh is not None
        return {
            **self.updater.state_dict(),
            "order": self.collector.order.state_dict(),
            "tokens": self.tokens,
            "reference": self.reference_mark,
            "moved_reference": self.reference.state_dict() if self.reference and refreshed else None,
            "replay": self.replay.state_dict() if self.replay else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["reference"] != self.reference_mark:
            raise InputError(
                "the reference model is not the one that the run started from: its weights differ",
                hint="resume with the model as it was before training, such as its folder",
            )
        self.updater.load_state_dict(state)
        if self.reference is not None and state["moved_reference"] is not None:
            self.reference.load_state_dict(state["moved_reference"])
        if self.replay is not None:
            self.replay.load_state_dict(state["replay"])
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
    callbacks: Sequence[Callback] = (),
    reports: Sequence[Callback] = (),
) -> RunResult:
    """Run reinforcement learning. What the verb `rl` calls.

    `model` is a loaded model in place of `config.model`, `algorithm` a composed one in place of `config.algorithm`.
    `callbacks` are the user's; `reports` come after them, and write what is made of a run.
    """
    algorithm = algorithm or resolve(config.algorithm)
    check_settings(config, algorithm)
    watching = observers(config, callbacks, reports)
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
            task = RL(config, algorithm, policy, prompts.items, evaluation, rewards)
            return Loop(task, loop_settings(config), folder, progress, watching).run()


def check_settings(config: RLConfig, algorithm: Algorithm) -> None:
    """Refuse settings that contradict one another, before anything is loaded."""
    check_trainable(config.rollout)
    if "group" in algorithm.advantage.needs and config.rollout.group_size < 2:
        raise InputError(
            f"{algorithm.name} compares the answers within a group, and rollout.group_size is {config.rollout.group_size}",
            hint="set rollout.group_size to 2 or more",
        )
    for shaper in algorithm.shapers:
        shaper(torch.tensor([1]), torch.tensor([False]), config.rollout.max_new_tokens)
    if config.model.lora is not None and config.model.lora.dropout > 0:
        raise InputError(
            f"model.lora.dropout {config.model.lora.dropout} has no effect: RL scores what was sampled, without dropout",
            hint="set model.lora.dropout=0",
        )
    if config.critic is not None and algorithm.critic is None:
        raise InputError(
            f"critic has no effect: {algorithm.name} trains none", hint="take an algorithm with a critic, such as ppo"
        )
    if config.training.reference_refresh is not None:
        if not algorithm.needs_reference:
            raise InputError(f"training.reference_refresh has no effect: {algorithm.name} keeps no reference")
        if config.model.lora is not None:
            raise InputError(
                "training.reference_refresh: a policy with a LoRA adapter has its own backbone as the reference",
                hint="set training.reference_refresh=null, or train without model.lora",
            )


def value_model(settings: CriticConfig, model: ModelConfig, policy: Policy) -> ValueModel:
    """The critic that the configuration asks for, all of whose values are 0."""
    if settings.path is None:
        return ValueModel(policy.model, settings.backbone)
    source = training_policy(model.model_copy(update={"path": settings.path, "lora": None}))
    if source.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise InputError(
            f"critic.path {settings.path} reads other tokens than the policy",
            hint="take a model with the same tokenizer",
        )
    return ValueModel(policy.model, "own", source.model)


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
