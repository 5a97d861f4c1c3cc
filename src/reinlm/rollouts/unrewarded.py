"""Episodes without a reward: how many, for which reason, and what to change.

An episode that a limit cuts off is truncated: the environment's last step is not taken, so that a reward that only this
step gives is absent, which is not a reward of 0. Such an episode is in no statistic and no loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from reinlm.errors import RunError
from reinlm.records import Rollout, ScoredGroup

FAILED, FINISHED, ENVIRONMENT = "error", "finished", "environment"

_REMEDIES = {
    "length": "raise {max_new_tokens}",
    "context": "shorten prompts and observations, or take a model with a longer context",
    "turns": "raise rollout.max_turns",
    "time": "raise rollout.episode_time_limit",
    FAILED: "correct the environment",
    ENVIRONMENT: "have the environment give a reward in the step that truncates",
    FINISHED: "have the environment give a number, not None",
}
"""By reason, in the order in which they are named: what gives such episodes a reward."""

_LIMITS = ("length", "context", "turns", "time")


def unrewarded(groups: Sequence[ScoredGroup]) -> dict[str, int]:
    """How many episodes have no reward, by reason; reasons that do not occur are left out.

    "length", "context", "turns" and "time" are the limits that truncate; "environment": it truncated the episode itself;
    "error": it failed; "finished": the episode ended by itself, and nothing gave it a reward.
    """
    pairs = [pair for group in groups for pair in zip(group.group.rollouts, group.returns, strict=True)]
    counts = Counter(_reason(rollout) for rollout, earned in pairs if earned is None)
    return {reason: counts[reason] for reason in _REMEDIES if reason in counts}


def environment_errors(groups: Sequence[ScoredGroup]) -> list[str]:
    """What ended the episodes that an environment's error ended, one line for each."""
    return [rollout.reason for group in groups for rollout in group.group.rollouts if rollout.failed]


def check_rewarded(
    where: str,
    groups: Sequence[ScoredGroup],
    messages: Mapping[str, str],
    *,
    functions: bool,
    max_new_tokens: str = "rollout.max_new_tokens",
) -> None:
    """Raise RunError, with the reasons and what to change, where no episode has a reward.

    Args:
        where: what was sampled, such as "step 3".
        messages: by reward function that failed on an answer: what went wrong first.
        functions: there are reward functions.
        max_new_tokens: the setting that limits the length of a turn.
    """
    missing = unrewarded(groups)
    total = sum(len(group.events) for group in groups)
    if sum(missing.values()) < total:
        return
    first = next((f"; first error: {text}" for text in (*messages.values(), *environment_errors(groups))), "")
    advice = remedy(missing, functions=functions, max_new_tokens=max_new_tokens)
    hint = "correct the reward function" if messages else advice
    raise RunError(f"{where}: none of {total} episodes has a reward: {in_words(missing)}{first}", hint=hint)


def _reason(rollout: Rollout) -> str:
    if rollout.failed:
        return FAILED
    if rollout.terminated:
        return FINISHED
    return rollout.reason if rollout.reason in _LIMITS else ENVIRONMENT


def in_words(counts: Mapping[str, int]) -> str:
    """The counts of `unrewarded` in words: "truncated by length 12, truncated by turns 4, ended by an error 1"."""
    words = {FAILED: "ended by an error", FINISHED: "finished without one"}
    return ", ".join(f"{words.get(reason, f'truncated by {reason}')} {count}" for reason, count in counts.items())


def remedy(
    counts: Mapping[str, int], *, functions: bool = False, max_new_tokens: str = "rollout.max_new_tokens"
) -> str:
    """What to change so that such episodes get a reward; `functions`: reward functions have scored all but failed ones.

    `max_new_tokens` is the setting that limits the length of a turn.
    """
    if functions:
        failed = [_REMEDIES[FAILED]] if FAILED in counts else []
        return "; ".join([*failed, "have the reward functions give a number, not None"])
    steps = [_REMEDIES[reason].format(max_new_tokens=max_new_tokens) for reason in counts]
    if any(reason not in (FAILED, FINISHED) for reason in counts):
        steps.append("or add a reward function, which scores truncated episodes too")
    return "; ".join(steps)
