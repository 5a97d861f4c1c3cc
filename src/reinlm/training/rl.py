"""Reinforcement learning: sample → score → filter → advantages → passes of minibatches in micro-batches → step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from reinlm.algorithms import Algorithm, AlgorithmState
from reinlm.batches import TokenBatch, feedback, token_batch
from reinlm.composition import shaped, with_first_reward
from reinlm.data import Examples, RowOrder
from reinlm.loop import BatchPrepared, GroupScored, StepContext, StepReport, Updated
from reinlm.models import FollowingModel, Policy, TokenModel
from reinlm.objectives import Feedback
from reinlm.records import ScoredGroup, Task
from reinlm.rewards import RewardSet, TrainerState
from reinlm.rollouts import Collected, Engine, Episodes, Source
from reinlm.rollouts.unrewarded import in_words, remedy
from reinlm.training.anchors import Anchors
from reinlm.training.collecting import Sampler, batches_of
from reinlm.training.config import RLConfig, failed_steps
from reinlm.training.critic import CriticConfig, CriticModel, value_model
from reinlm.training.evaluation import Evaluator, reward_names
from reinlm.training.learner import Learner
from reinlm.training.ledger import Resident, anchors_of, critic_of, policy_of, sampler_of
from reinlm.training.optimizer import Optimizer, OptimizerConfig
from reinlm.training.policy import TrainsPolicy
from reinlm.training.preparation import Prepared
from reinlm.training.replay import Replay
from reinlm.training.rl_checks import needs_rewards, updates_per_batch
from reinlm.training.sampled import batch_metrics, log_rollouts
from reinlm.training.sampled_batch import SampledBatch
from reinlm.training.setup import Phases, autocast, total_steps
from reinlm.training.text import TextLoss
from reinlm.training.update import Updater, UpdateResult


class RLRun(TrainsPolicy):
    """What `reinlm rl` runs: one step collects a batch of groups and makes `passes · minibatches` updates of it."""

    kind = "rl"

    def __init__(
        self,
        config: RLConfig,
        algorithm: Algorithm,
        policy: Policy,
        tasks: Sequence[Task],
        episodes: Episodes,
        rewards: RewardSet | None,
        evaluator: Evaluator | None = None,
        text: Examples | None = None,
        say: Callable[[str], None] = lambda _text: None,
        order: RowOrder | None = None,
        sampled_from: FollowingModel | None = None,
    ) -> None:
        """`say` shows a line to the user, such as in the console; `order` is that of the tasks, by default shuffled;
        `sampled_from` follows the policy, for the engine of a run that samples ahead (`rollout.async_level`)."""
        self.config = config
        self.algorithm = algorithm
        self.policy = policy
        self.evaluator = evaluator
        self.rewards = rewards
        self.engine = cast("Engine", episodes.engine)
        self.total_steps = total_steps(config.training, len(tasks), config.rollout.groups)
        self.updates = updates_per_batch(config, algorithm)
        settings = config.training
        self.model = TokenModel(policy.model, packing=settings.packing, chunk_tokens=settings.logprob_chunk)
        self.anchors = Anchors(
            algorithm,
            policy,
            self.model,
            config=config.model,
            reference=config.reference,
            teacher=config.teacher,
            refresh=settings.reference_refresh,
            text_kl=config.text is not None and config.text.loss == "kl",
        )
        self.updater = self._updater(text)
        self.source = Source(
            episodes,
            tasks,
            order or RowOrder(len(tasks), seed=config.seed),
            rewards,
            groups=config.rollout.groups,
            group_size=config.rollout.group_size,
            max_attempts=config.rollout.max_attempts,
            filters=with_first_reward(
                algorithm.filters,
                rewards.names[0] if rewards is not None else None,
                config.evaluation.correct_above,
            ),
            greedy_baseline="greedy" in algorithm.advantage.needs,
            needs_rewards=needs_rewards(algorithm),
            max_failed_steps=failed_steps(config.reward),
            name=algorithm.name,
        )
        sampler = Sampler(config, self.engine, self.source, policy.stops, self.total_steps)
        self.batches = batches_of(sampler, rewards, sampled_from)
        updates = self.updates.passes * self.updates.minibatches
        self.replay = Replay(settings.replay, config.seed, updates) if settings.replay else None
        self._sampled_from = sampled_from
        self.tokens = 0
        self._say = say
        self._said: set[str] = set()

    def _updater(self, examples: Examples | None) -> Updater:
        config, weights = self.config, list(self.policy.model.parameters())
        count = self.total_steps * self.updates.passes * self.updates.minibatches

        def learner(model: TokenModel, parameters: Any, optimizer: OptimizerConfig, adapter: str | None) -> Learner:
            return Learner(
                model,
                Optimizer(parameters, optimizer, count),
                micro_batch_tokens=config.training.micro_batch_tokens,
                adapter=adapter,
                train_mode=config.model.gradient_checkpointing,
                autocast=autocast(config.training, self.policy),
            )

        policy = learner(self.model, weights, config.optimizer, None)
        critic = None
        if self.algorithm.critic is not None:
            settings = config.critic or CriticConfig()
            model = value_model(settings, config.model, self.policy, self.model)
            own = settings.optimizer or config.optimizer.model_copy(update={"warmup_steps": 0})
            critic = CriticModel(model, learner(model.model, model.trainable(), own, model.adapter))
        text = None
        if config.text is not None and examples is not None:
            text = TextLoss(config.text, examples, policy, self.anchors.by_name, config.seed)
        return Updater(
            self.algorithm,
            policy,
            self.updates,
            critic=critic,
            anchors=self.anchors,
            text=text,
            decoupled=config.rollout.async_level > 0,
        )

    @property
    def version(self) -> int:
        """Optimizer steps made, of policy and critic."""
        critic = self.updater.critic
        return self.updater.learner.version + (critic.learner.version if critic else 0)

    @property
    def state(self) -> AlgorithmState:
        """What moves while the algorithm runs."""
        return self.updater.state

    # ------------------------------------------------------------------------------------------ a step

    def step(self, step: int, context: StepContext) -> StepReport:
        phases = Phases()
        with self.batches.of_step(step, self.state.updates, phases) as batch:
            metrics = self._train(step, context, batch, phases)
        metrics |= {**self._speed(metrics, phases), **batch.seconds, **phases.seconds}
        return StepReport(metrics, stop=batch.collected.nothing_left)

    def _train(self, step: int, context: StepContext, sampled: SampledBatch, phases: Phases) -> dict[str, float]:
        collected = sampled.collected
        for group in collected.sampled:
            context.send(GroupScored(step, group))
        self._say_missing(step, collected)
        names = reward_names(collected.sampled, self.rewards)
        rewarded = needs_rewards(self.algorithm)
        metrics = batch_metrics(sampled, names, self.config.rollout, rewarded=rewarded)
        if _tokens(collected.kept):
            earlier = self.replay.draw(step, self.state.updates) if self.replay else []
            limit = sampled.sampling.max_new_tokens
            groups = [
                shaped(group, self.algorithm.shapers, _limit(group, limit)) for group in (*collected.kept, *earlier)
            ]
            batch = token_batch(groups)
            with phases("score"):
                earned = self._feedback(groups, batch, names)
                prepared, found = self.updater.prepare(batch, earned)
            context.send(BatchPrepared(step, batch.sequences, batch.tokens, tuple(groups), prepared.advantages.numpy()))
            with phases("update"):
                updated = self.updater.update(step, batch, prepared, context.last_checkpoint)
                self.anchors.refresh(step)
            found |= updated.metrics
            context.send(Updated(step, found))
            metrics |= found | _shaping(groups)
            self.tokens += int(batch.layout.expand(prepared.trained, "episode").sum())
            if self.replay is not None:
                metrics["groups/replayed"] = float(len(earlier))
                self.replay.add(collected.kept)
            self._log(step, context, groups, _log_columns(prepared, updated))
        else:
            self._log(step, context, collected.sampled, {})
        return metrics | {"epoch": sampled.epochs, "num_tokens": float(self.tokens)}

    def _say_missing(self, step: int, collected: Collected) -> None:
        """Say once in a run why episodes have no reward: what failed first, or how those without one ended."""
        found = collected.what_failed
        if collected.kept and not _tokens(collected.kept):
            found["tokens"] = "no episode has a token to train on: a limit ended each of them before its first"
        missing = collected.unrewarded
        if self.rewards is None and needs_rewards(self.algorithm) and missing.keys() - {"error"}:
            found["unrewarded"] = f"no reward for some episodes ({in_words(missing)}): {remedy(missing)}"
        for name, text in found.items():
            if name not in self._said:
                self._said.add(name)
                self._say(f"note: step {step}: {text}")

    def _feedback(self, groups: Sequence[ScoredGroup], batch: TokenBatch, names: Sequence[str]) -> Feedback:
        named = names if self.algorithm.needs_named_rewards else ()
        default = None if needs_rewards(self.algorithm) else 0.0
        return feedback(groups, batch.layout, names=named, default=default)

    def _log(
        self, step: int, context: StepContext, groups: Sequence[ScoredGroup], columns: Mapping[str, Tensor]
    ) -> None:
        log_rollouts(step, context, groups, columns, run=self.config.run, policy=self.policy)

    def _speed(self, metrics: Mapping[str, float], phases: Phases) -> dict[str, float]:
        seconds = sum(phases.seconds.values())
        return {
            "tokens_per_second": metrics["samples"] * metrics["completions/mean_length"] / seconds,
            "samples_per_second": metrics["samples"] / seconds,
        }

    # ------------------------------------------------------------------------------------------ the rest

    def set_learning_rate(self, value: float) -> None:
        assert self.updater.learner.optimizer is not None
        self.updater.learner.optimizer.set_rate(value)

    def scale_learning_rate(self, factor: float) -> None:
        assert self.updater.learner.optimizer is not None
        self.updater.learner.optimizer.scale *= factor

    def evaluate(self, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        if self.evaluator is None:
            return {}, []
        self.batches.before_evaluation()
        state = TrainerState(global_step=step, max_steps=self.total_steps)
        return self.evaluator.evaluate(state, version=self.state.updates)

    def residents(self) -> list[Resident]:
        """The models in memory."""
        updater, policy = self.updater, self.policy.model
        critic = updater.critic
        found = [policy_of(policy, updater.learner.optimizer, critic.model if critic else None)]
        if critic is not None:
            found.append(critic_of(critic.model, policy, critic.learner.optimizer))
        return [*found, *anchors_of(updater.anchors), *sampler_of(self._sampled_from)]

    def state_dict(self) -> dict[str, Any]:
        return {
            **self.updater.state_dict(),
            **self.batches.state_dict(),
            "tokens": self.tokens,
            "anchors": self.anchors.state_dict(),
            "replay": self.replay.state_dict() if self.replay else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.anchors.load_state_dict(state["anchors"])
        self.updater.load_state_dict(state)
        if self.replay is not None:
            self.replay.load_state_dict(state["replay"])
        self.batches.load_state_dict(state)
        self.tokens = int(state["tokens"])


def _limit(group: ScoredGroup, otherwise: int) -> int:
    """The tokens of an answer at most when the group was sampled; a replayed one may have had another limit."""
    segments = [segment for rollout in group.group.rollouts for segment in rollout.segments]
    own = max((segment.sampling.max_new_tokens or 0 for segment in segments), default=0)
    return own or otherwise


def _tokens(groups: Sequence[ScoredGroup]) -> int:
    """How many tokens the policy chose."""
    return sum(rollout.length for group in groups for rollout in group.group.rollouts)


def _shaping(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    given = [sum(e.weight * e.value for e in events) for group in groups for events in group.shaping]
    return {"rewards/shaping/mean": sum(given) / len(given)} if given else {}


def _log_columns(prepared: Prepared, updated: UpdateResult) -> dict[str, Tensor]:
    """What an update made of each token, with its advantage, value and return, the full KL that was charged to its reward, and
    the adjusted reward of its episode."""
    feedback, layout = prepared.feedback, prepared.feedback.layout
    adjusted = feedback.adjusted_rewards
    skipped = torch.where(feedback.rewards.isnan(), NO_REWARD, torch.where(prepared.trained, TRAINED, FILTERED))
    mask, weight = layout.expand(skipped, "episode"), updated.tokens.get("weight")
    if weight is not None:
        mask = torch.where((mask == TRAINED) & weight.isnan(), NOT_REACHED, mask)
        mask = torch.where((mask == TRAINED) & (weight == 0.0), WEIGHT_0, mask)
    columns: dict[str, Tensor | None] = {
        **updated.tokens,
        "advantages": prepared.advantages,
        "old_logprobs": prepared.old,
        "ref_logprobs": prepared.ref,
        "teacher_logprobs": prepared.teacher,
        "kl_full_reward": prepared.full,
        "values": feedback.values,
        "returns": prepared.returns,
        "token_rewards": feedback.token_rewards,
        "adjusted_rewards": None if adjusted is None else layout.expand(adjusted, "episode"),
        "mask": mask,
    }
    return {name: values for name, values in columns.items() if values is not None}


TRAINED, NO_REWARD, FILTERED, WEIGHT_0, NOT_REACHED = range(5)
"""In the column `mask` of a rollout log: why a token is, or is not, in the loss; see `reinlm.runs.schema`."""
