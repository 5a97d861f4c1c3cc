"""What the settings of reinforcement learning amount to, and those that contradict one another; nothing here needs a model."""

from __future__ import annotations

from collections.abc import Mapping

from reinlm.algorithms import ALGORITHMS, Algorithm, Updates
from reinlm.composition import MixedOutcomes, updates_in
from reinlm.composition.compatibility import idle_choices
from reinlm.composition.filters import SUM
from reinlm.errors import InputError, unknown
from reinlm.rewards.spec import read_spec
from reinlm.rollouts import check_trainable
from reinlm.sources import IN_FORCE, Key
from reinlm.training.config import RLConfig
from reinlm.training.critic import CriticConfig
from reinlm.training.in_force import replaced_choices
from reinlm.training.update import UpdateSettings

SMALLEST_MINIBATCH = 8
"""The least number of groups per update if the algorithm sets the number of updates."""


def needs_rewards(algorithm: Algorithm) -> bool:
    """Whether training needs a reward: not where a teacher, or a KL, gives the gradient."""
    return algorithm.advantage.reads_rewards or algorithm.needs_named_rewards


def needs_reference(config: RLConfig, algorithm: Algorithm) -> bool:
    """Whether a loss keeps the policy near a frozen model: the algorithm's, or that of data-set text."""
    return algorithm.needs_reference or (config.text is not None and config.text.loss == "kl")


def given_minibatches(config: RLConfig, algorithm: Algorithm) -> int | None:
    """`algorithm.updates.minibatches` where the recipe, the command line or Python gives it; None where it is the paper's."""
    own = ALGORITHMS[algorithm.base or algorithm.name]() if (algorithm.base or algorithm.name) in ALGORITHMS else None
    given = "minibatches" in updates_in(config.algorithm)
    changed = algorithm.updates.minibatches != (own.updates if own else Updates()).minibatches
    return algorithm.updates.minibatches if given or changed else None


def updates_per_batch(config: RLConfig, algorithm: Algorithm) -> UpdateSettings:
    """What the recipe says, and where it says nothing the paper's own, with at least eight whole groups an update."""
    settings, groups = config.training, config.rollout.groups
    most = max(1, groups // SMALLEST_MINIBATCH)
    own = next(n for n in range(min(algorithm.updates.minibatches, most), 0, -1) if groups % n == 0)
    return UpdateSettings(
        passes=settings.passes or algorithm.updates.passes,
        minibatches=settings.minibatches or given_minibatches(config, algorithm) or own,
        target_kl=settings.target_kl,
        kl_learning_rate=settings.kl_learning_rate,
        critic_warmup=config.critic.warmup_steps if config.critic else 0,
        seed=config.seed,
    )


def in_force(config: RLConfig, algorithm: Algorithm) -> dict[Key, str]:
    """What stands for settings that are null in this run, by path: comments for config.yaml."""
    updates = updates_per_batch(config, algorithm)
    found: dict[Key, str] = {
        ("training", name): f"{IN_FORCE}{getattr(updates, name)}"
        for name in ("minibatches", "passes")
        if getattr(config.training, name) is None
    }
    given = isinstance(config.algorithm, Mapping) and "corrections" in config.algorithm
    if config.rollout.async_level and algorithm.corrections and not given:
        found["algorithm", "corrections"] = f"{IN_FORCE}for rollout.async_level {config.rollout.async_level}"
    if config.critic is None:
        own = f"backbone {CriticConfig().backbone}, the policy's optimizer without warm-up"
        found["critic",] = f"{IN_FORCE}{own if algorithm.critic else f'none, as {algorithm.name} trains none'}"
    return found


def more_updates(groups: int) -> str:
    """A setting that makes more than one update of a batch: as many minibatches as divide its groups, 4 before others."""
    count = next((n for n in (4, 2, 3, 5, 7) if groups % n == 0), None)
    return "training.passes=2" if count is None else f"training.minibatches={count} (or training.passes=2)"


def notes_before_a_model(config: RLConfig, algorithm: Algorithm, sources: Mapping[Key, str]) -> list[str]:
    """What a user should know of a run before its model is loaded: choices that were replaced, and those that cannot act."""
    updates = updates_per_batch(config, algorithm)
    idle = idle_choices(
        algorithm,
        updates.passes * updates.minibatches,
        replay=config.training.replay is not None,
        more=more_updates(config.rollout.groups),
    )
    return [*replaced_choices(sources, algorithm), *algorithm.warnings, *idle]


def late_gold(config: RLConfig, total_steps: int) -> list[str]:
    """A note where the run has too few evaluations for a fall of the gold score to be told; none otherwise."""
    every = config.evaluation.every
    if config.gold is None or not every or (later := -(-total_steps // every)) >= config.gold.evaluations:
        return []
    return [
        f"gold.evaluations {config.gold.evaluations}: the run has {later} after the first, so that no warning can come; lower "
        "it, or evaluation.every"
    ]


SMALL = 10_000_000
"""Parameters of a model for which the default learning rate is far too low."""


def slow_rate(config: RLConfig, parameters: int) -> list[str]:
    """A note where the learning rate is the default, which suits large models, and the model is small; none otherwise."""
    if parameters >= SMALL or config.optimizer.changed("learning_rate"):
        return []
    rate = config.optimizer.learning_rate
    return [
        f"the learning rate is the default, {rate:g}, with which a model of {parameters:,} parameters hardly changes; try "
        "optimizer.learning_rate=1e-3"
    ]


def check_settings(config: RLConfig, algorithm: Algorithm) -> None:
    """Refuse settings that contradict one another, before anything is loaded."""
    check_trainable(config.rollout)
    if "group" in algorithm.advantage.needs and config.rollout.group_size < 2:
        raise InputError(
            f"{algorithm.name} compares the answers within a group, and rollout.group_size is {config.rollout.group_size}",
            hint="set rollout.group_size to 2 or more",
        )
    if config.rollout.changed("max_attempts") and not algorithm.filters:
        raise InputError(
            f"rollout.max_attempts {config.rollout.max_attempts} has no effect: {algorithm.name} drops no groups",
            hint="set algorithm.filters=mixed_outcomes, or take an algorithm with a filter, such as dapo",
        )
    for shaper in algorithm.shapers:
        shaper.check(config.rollout.longest)
    if config.model.lora is not None and config.model.lora.dropout > 0:
        raise InputError(
            f"model.lora.dropout {config.model.lora.dropout} has no effect: RL scores what was sampled, without dropout",
            hint="set model.lora.dropout=0",
        )
    _check_reward_names(config, algorithm)
    _check_updates(config, algorithm)
    _check_models(config, algorithm)


def _check_reward_names(config: RLConfig, algorithm: Algorithm) -> None:
    """Refuse constraints and filters on rewards that the recipe does not have.

    A constraint bounds outcomes, which reward functions and shapers give: an environment's rewards land on single turns.
    """
    functions = [choice.name for choice in read_spec(config.reward.functions)] if config.reward else []
    outcomes = [*functions, *(shaper.name for shaper in algorithm.shapers)]
    for constraint in algorithm.constraints:
        if constraint.reward not in outcomes:
            raise unknown("reward function in a constraint:", constraint.reward, outcomes)
    asked = [item.reward for item in algorithm.filters if isinstance(item, MixedOutcomes) and item.reward is not None]
    for name in asked if config.environment == "question" else ():
        if name not in {SUM, *functions}:
            raise unknown("reward in the filter mixed_outcomes:", name, [*functions, SUM])


def _check_updates(config: RLConfig, algorithm: Algorithm) -> None:
    given, rollout = given_minibatches(config, algorithm), config.rollout
    if given is not None and config.training.minibatches is None and rollout.groups % given:
        raise InputError(
            f"algorithm.updates.minibatches {given} does not divide the {rollout.groups} groups of a batch "
            f"(rollout.batch_size {rollout.batch_size} / group_size {rollout.group_size})",
            hint=f"give a number that does, such as {more_updates(rollout.groups).partition(' ')[0]}",
        )
    updates = updates_per_batch(config, algorithm)
    if updates.passes * updates.minibatches == 1 and config.training.replay is None:
        for name in ("target_kl", "kl_learning_rate"):
            if getattr(config.training, name) is not None:
                raise InputError(
                    f"training.{name} has no effect: a batch makes one update, which begins where the old policy is",
                    hint="set training.minibatches or training.passes to 2 or more",
                )


def _check_models(config: RLConfig, algorithm: Algorithm) -> None:
    if config.critic is not None and algorithm.critic is None:
        raise InputError(
            f"critic has no effect: {algorithm.name} trains none", hint="take an algorithm with a critic, such as ppo"
        )
    tied = needs_reference(config, algorithm)
    if config.reference is not None and not tied:
        raise InputError(f"reference has no effect: {algorithm.name} keeps no reference", hint="give it a kl")
    if algorithm.needs_teacher and config.teacher is None:
        raise InputError(f"{algorithm.name} learns from a teacher, and none is given", hint="set teacher.path=MODEL")
    if config.teacher is not None and not algorithm.needs_teacher:
        raise InputError(f"teacher has no effect: {algorithm.name} asks for none", hint="take algorithm=distill")
    if algorithm.needs_full_old_kl and config.model.lora is not None:
        raise InputError(
            "a full KL to the old policy keeps a second copy of the policy, which an adapter does not have"
        )
    if config.text is not None and config.text.loss == "sft" and config.text.changed("direction"):
        raise InputError("text.direction has no effect: the loss sft has no KL", hint="set text.loss=kl")
    if config.training.reference_refresh is None:
        return
    if not tied:
        raise InputError(f"training.reference_refresh has no effect: {algorithm.name} keeps no reference")
    if config.model.lora is not None and config.reference is None:
        raise InputError(
            "training.reference_refresh: a policy with a LoRA adapter has its own backbone as the reference",
            hint="set training.reference_refresh=null, or train without model.lora",
        )
