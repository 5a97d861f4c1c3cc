"""Online DPO: a step samples answers from the policy, has them judged, makes pairs, and learns from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from reinlm.algorithms import PreferenceAlgorithm
from reinlm.data import RowOrder
from reinlm.loop import GroupScored, StepContext, StepReport
from reinlm.models import FollowingModel, Policy
from reinlm.records import ScoredGroup, Task
from reinlm.rewards import RewardSet, TrainerState
from reinlm.rollouts import Collected, Engine, Episodes, Source
from reinlm.training.collecting import Sampler, batches_of
from reinlm.training.config import failed_steps
from reinlm.training.dpo import LearnsPreferences
from reinlm.training.dpo_config import DPOConfig
from reinlm.training.evaluation import Evaluator, reward_names
from reinlm.training.ledger import Resident, sampler_of
from reinlm.training.preference_update import Compared, PreferenceUpdater
from reinlm.training.sampled import batch_metrics, log_rollouts
from reinlm.training.sampled_pairs import PairRule, paired_batch
from reinlm.training.setup import Phases, total_steps


class OnlineDPORun(LearnsPreferences):
    """What `reinlm dpo` runs with a reward: one step samples `rollout.batch_size` answers and learns from their pairs.

    Prompts whose answers all tie are left out and counted (`groups/dropped`). The run ends where as many prompts in a row as the
    data hold gave no pair.

    Sources: arXiv 2402.04792 (online AI feedback); iterative DPO, arXiv 2312.11456: many prompts a step, several updates.

    Args:
        tasks: the prompts.
        episodes: how answers to them are sampled.
        rewards: None where the environment gives rewards of its own.
        sampled_from: follows the policy, for the engine of a run that samples ahead (`rollout.async_level`).
    """

    def __init__(
        self,
        config: DPOConfig,
        algorithm: PreferenceAlgorithm,
        policy: Policy,
        tasks: Sequence[Task],
        episodes: Episodes,
        rewards: RewardSet | None,
        evaluator: Evaluator | None,
        order: RowOrder | None = None,
        say: Callable[[str], None] = lambda text: None,
        sampled_from: FollowingModel | None = None,
    ) -> None:
        self.config = config
        self.algorithm = algorithm
        self.policy = policy
        self.rewards = rewards
        self.evaluator = evaluator
        self.rule = PairRule(config.pairs.choose, config.pairs.min_margin, config.pairs.missing_end_penalty)
        groups = config.rollout.groups
        self.total_steps = total_steps(config.training, len(tasks), groups)
        self.updates = math.ceil(groups / config.training.batch_size)
        """Optimizer steps of a step."""
        self.updater = PreferenceUpdater(config, algorithm, policy, self.total_steps * self.updates, live=True)
        self.model = self.updater.model
        engine = cast("Engine", episodes.engine)
        source = Source(
            episodes,
            tasks,
            order or RowOrder(len(tasks), seed=config.seed),
            rewards,
            groups=groups,
            group_size=config.rollout.group_size,
            max_attempts=config.rollout.max_attempts,
            filters=(lambda group: bool(self.rule(group)),),
            max_failed_steps=failed_steps(config.reward),
            name=algorithm.name,
        )
        sampler = Sampler(config, engine, source, policy.stops, self.total_steps)
        self.batches = batches_of(sampler, rewards, sampled_from)
        self._sampled_from = sampled_from
        self._prompts = len(tasks)
        self._without_pair = 0
        """Prompts in a row, up to now, of steps that gave no pair."""
        self._say = say
        self._said: set[str] = set()

    def step(self, step: int, context: StepContext) -> StepReport:
        phases = Phases()
        with self.batches.of_step(step, self.version, phases) as sampled:
            collected = sampled.collected
            for group in collected.sampled:
                context.send(GroupScored(step, group))
            self._say_failures(step, collected)
            names = reward_names(collected.sampled, self.rewards)
            metrics = batch_metrics(sampled, names, self.config.rollout)
            before = self.updater.tokens
            metrics |= self._learn(step, context, collected.kept, phases)
            log_rollouts(step, context, collected.sampled, {}, run=self.config.run, policy=self.policy)
        self._without_pair = 0 if collected.kept else self._without_pair + len(collected.sampled)
        seconds = sum(phases.seconds.values())
        metrics |= {
            "epoch": sampled.epochs,
            "num_tokens": float(self.updater.tokens),
            "tokens_per_second": (self.updater.tokens - before) / seconds,
            "samples_per_second": metrics["samples"] / seconds,
        }
        return StepReport({**metrics, **sampled.seconds, **phases.seconds}, stop=self._nothing())

    def _nothing(self) -> str | None:
        """Why the run ends, where no prompt gives a pair any more."""
        if self._without_pair < self._prompts:
            return None
        return f"the answers to {self._without_pair} prompts in a row all tie: there is no pair to learn from"

    def _learn(
        self, step: int, context: StepContext, groups: Sequence[ScoredGroup], phases: Phases
    ) -> dict[str, float]:
        """The updates of a step, each on the pairs of some of the prompts; the means of their figures."""
        if not groups:
            return {}
        pairs = 0
        margins = 0.0
        found: list[dict[str, float]] = []

        def make(part: Sequence[ScoredGroup]) -> Compared:
            nonlocal pairs, margins
            batch, items = paired_batch(part, self.rule)
            assert items.margin is not None
            pairs += len(items.first)
            margins += float(items.margin.sum())
            return Compared(batch, items, self.updater.reference_of(batch))

        for places in np.array_split(np.arange(len(groups)), self.updates):
            part = [groups[place] for place in places]
            if part:
                found.append(self.updater.update(step, context, phases, lambda part=part: make(part)))  # type: ignore[misc]
        self.updater.refresh(step)
        names = dict.fromkeys(name for row in found for name in row)
        means = {name: _mean([row[name] for row in found if name in row]) for name in names}
        return means | {"pairs": float(pairs), "pairs/reward_margin": margins / pairs}

    def _say_failures(self, step: int, collected: Collected) -> None:
        """Say once in a run what failed first, and that answers tie."""
        found = collected.what_failed
        if not collected.kept:
            found["pairs"] = f"the answers to all {len(collected.sampled)} prompts tie, and no update is made"
        for name, text in found.items():
            if name not in self._said:
                self._said.add(name)
                self._say(f"note: step {step}: {text}")

    def evaluate(self, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        if self.evaluator is None:
            return {}, []
        self.batches.before_evaluation()
        state = TrainerState(global_step=step, max_steps=self.total_steps)
        return self.evaluator.evaluate(state, version=self.version)

    def residents(self) -> list[Resident]:
        """The models in memory."""
        return [*super().residents(), *sampler_of(self._sampled_from)]

    def state_dict(self) -> dict[str, Any]:
        return {
            **self.updater.state_dict(),
            "batches": self.batches.state_dict(),
            "without_pair": self._without_pair,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.updater.load_state_dict(state)
        self.batches.load_state_dict(state["batches"])
        self._without_pair = int(state["without_pair"])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
