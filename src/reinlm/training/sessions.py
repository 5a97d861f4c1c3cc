"""The trainers of sft and rl without their arguments: what each reads, checks and hands to the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from reinlm.algorithms import Algorithm
from reinlm.composition.document import choice_rows
from reinlm.data import Examples
from reinlm.environments import is_question
from reinlm.errors import InputError
from reinlm.models import FollowingModel, Policy, disable_dropout
from reinlm.records import Task
from reinlm.sources import Key
from reinlm.training.base_session import Session
from reinlm.training.config import RLConfig, SFTConfig
from reinlm.training.dpo_config import DPOConfig
from reinlm.training.episodes import resolve_environment
from reinlm.training.in_force import choices_line
from reinlm.training.inputs import RLInputs, SFTInputs, check_set
from reinlm.training.off_policy import run_algorithm
from reinlm.training.reward_models import reading_notes
from reinlm.training.rl import RLRun
from reinlm.training.rl_checks import (
    check_settings,
    in_force,
    late_gold,
    needs_reference,
    needs_rewards,
    notes_before_a_model,
    slow_rate,
)
from reinlm.training.sft import SFTRun, check_sft

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class SFTSession(Session):
    """Supervised fine-tuning; see `reinlm.sft` for what it takes."""

    kind = "sft"
    config: SFTConfig
    run: SFTRun

    def _check(self) -> None:
        self.environment = resolve_environment(
            self.config.environment, self.config.rollout, self.config.reward, needs_rewards=False
        )
        self.samples = self.config.reward is not None or not is_question(self.environment)
        check_sft(self.config, samples=self.samples)

    def _read(self) -> SFTInputs:
        return SFTInputs(self.config, samples=self.samples)

    def _make(self, loaded: tuple[Examples, dict[str, Examples], dict[str, Sequence[Task]]]) -> SFTRun:
        examples, held_out, tasks = loaded
        evaluator = None
        if tasks:
            evaluator = self._evaluator(self._setup(self.config.rollout, self.environment), tasks, self.config.rollout)
        return SFTRun(self.config, self.policy, examples, evaluator, held_out, self._order)


class RLSession(Session):
    """Reinforcement learning; see `reinlm.rl` for what it takes.

    Args:
        algorithm: a composed one in place of `config.algorithm`.
    """

    kind = "rl"
    config: RLConfig
    algorithm: Algorithm
    run: RLRun

    def __init__(self, config: RLConfig, *, algorithm: Algorithm | None = None, **options: Any) -> None:
        self.algorithm = run_algorithm(config, algorithm)
        super().__init__(config, **options)

    def _check(self) -> None:
        config = self.config
        check_settings(config, self.algorithm)
        self.environment = resolve_environment(
            config.environment, config.rollout, config.reward, needs_rewards=needs_rewards(self.algorithm)
        )
        if config.gold is not None and config.reward is None and is_question(self.environment):
            raise InputError(
                f"gold has no reward to be compared with: {self.algorithm.name} runs without any",
                hint="leave gold out, or set reward=…",
            )

    def _why_start(self) -> str | None:
        if self.config.reference is not None or not needs_reference(self.config, self.algorithm):
            return None
        return f"the KL of {self.algorithm.name} is measured from it as it was before training"

    def _in_force(self) -> dict[Key, str]:
        return in_force(self.config, self.algorithm)

    def _read(self) -> RLInputs:
        return RLInputs(self.config)

    def _make(self, loaded: tuple[Sequence[Task], dict[str, Sequence[Task]], Examples | None]) -> RLRun:
        tasks, sets, text = loaded
        config = self.config
        if self.gold is not None:
            for name, items in sets.items():
                check_set(self.gold, name, items, "gold: ")
        disable_dropout(self.policy.model)
        copied = following_model(config, self.policy)
        sampled = self.policy if copied is None else replace(self.policy, model=cast("PreTrainedModel", copied.model))
        setup = self._setup(config.rollout, self.environment, sampled)
        if absent := self.algorithm.needs_columns - set(setup.engine.capabilities.columns):
            raise InputError(
                f"{self.algorithm.name} has a loss term that reads the column {', '.join(sorted(absent))}, which engine "
                f"{config.rollout.engine!r} does not give",
                hint=f"take an engine that gives it; this one gives {', '.join(setup.engine.capabilities.columns)}",
            )
        episodes = setup.episodes(config.data, config.rollout.sampling(self.policy.stops))
        evaluator = self._evaluator(setup, sets, config.rollout)
        run = RLRun(
            config,
            self.algorithm,
            self.policy,
            tasks,
            episodes,
            self.rewards,
            evaluator,
            text,
            self.progress.say,
            self._order,
            copied,
        )
        if self.rewards is not None:
            self.rewards.state_dict()  # a state that no checkpoint can hold ends the run before its first step
        self._announce(run, reading_notes(config, self.policy, tasks))
        if copied is not None:
            corrected = dict(choice_rows(self.algorithm)).get("corrections", "none, as the algorithm weighs by itself")
            self.progress.say(
                f"async_level 1: the next batch is sampled beside each update, from a copy of the trained weights that takes "
                f"{copied.nbytes / 2**20:,.1f} MiB; corrections for older weights: {corrected}"
            )
        return run

    def _announce(self, run: RLRun, reading: Sequence[str]) -> None:
        """What a user should know before the first step."""
        updates = run.updates
        count, groups = updates.passes * updates.minibatches, run.config.rollout.groups // updates.minibatches
        self.progress.say(f"{self.algorithm.name}: {choices_line(self.algorithm)}")
        self.progress.say(
            f"{self.algorithm.name}: {_counted(count, 'update')} of each batch ({_counted(updates.passes, 'pass', 'passes')} "
            f"of {_counted(updates.minibatches, 'minibatch', 'minibatches')} of {_counted(groups, 'group')})"
        )
        self.notes += [
            *notes_before_a_model(self.config, self.algorithm, self.sources),
            *slow_rate(self.config, sum(weight.numel() for weight in self.policy.model.parameters())),
            *reading,
            *late_gold(run.config, run.total_steps),
            *(self.rewards.lost if self.rewards is not None and self.resumed else ()),
        ]
        for text in self.notes:
            self.progress.say(f"note: {text}")


def following_model(config: RLConfig | DPOConfig, policy: Policy) -> FollowingModel | None:
    """What the engine samples from where that is not the policy itself; None for a run that samples what it trains on next.

    Raises InputError for a model that cannot be copied.
    """
    level = config.rollout.async_level
    if not level:
        return None
    try:
        return FollowingModel(policy.model)
    except InputError as error:
        raise InputError(
            f"rollout.async_level {level} samples from a copy of the weights, and {error.message}",
            hint="set rollout.async_level=0",
        ) from error


def _counted(count: int, one: str, several: str | None = None) -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"
