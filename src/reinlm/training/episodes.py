"""Set up engine, environment and rewards for `rl`, `eval`, `generate`, and the evaluation of `sft`."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from reinlm.data import DataConfig, build_renderer
from reinlm.environments import MakeEnvironment, is_question, make_environment
from reinlm.errors import InputError
from reinlm.models import Policy
from reinlm.rewards import RewardConfig, RewardSet, build_rewards
from reinlm.rollouts import EpisodeConfig, Episodes, Sampling, build_engine


def resolve_environment(
    environment: Any, rollout: EpisodeConfig, reward: RewardConfig | None, *, needs_rewards: bool
) -> MakeEnvironment:
    """The environment factory that a recipe names, checked together with rollout and reward.

    Raises:
        InputError: an environment that cannot be made; no reward at all where one is needed; a setting of `rollout` that
            a single question and answer does not follow.
    """
    make = make_environment(environment)
    if not is_question(make):
        return make
    if reward is None and needs_rewards:
        raise InputError("'reward' is required", hint="set reward=… or name an environment that gives rewards")
    for name in rollout.for_turns:
        raise InputError(
            f"rollout.{name} {getattr(rollout, name)} has no effect: the environment 'question' takes one answer and calls "
            "nothing that could fail or take time",
            hint=f"leave rollout.{name} out, or name an environment of several turns",
        )
    return make


def open_rewards(reward: RewardConfig | None, stack: contextlib.ExitStack) -> RewardSet | None:
    """The rewards that a recipe names, whose processes end with the stack; None for none."""
    return None if reward is None else stack.enter_context(build_rewards(reward))


class EpisodeSetup:
    """The engine and the environment of a recipe, from which the episodes of each data set are made.

    Args:
        autocast: the type that the engine computes in; None: that of the weights.
    """

    def __init__(
        self,
        rollout: EpisodeConfig,
        environment: MakeEnvironment,
        policy: Policy,
        *,
        seed: int,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.engine = build_engine(rollout.engine, policy, autocast=autocast, max_running=rollout.max_running)
        self._rollout, self._environment, self._policy, self._seed = rollout, environment, policy, seed

    def episodes(self, data: DataConfig, sampling: Sampling) -> Episodes:
        """How the tasks of a data set are played."""
        return Episodes(
            self.engine,
            build_renderer(data, self._policy.tokenizer),
            sampling,
            environment=self._environment,
            seed=self._seed,
            order=self._rollout.order,
            limits=self._rollout.limits,
        )
