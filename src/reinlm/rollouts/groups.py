"""Run several episodes of each task, and score each group while others are still sampled."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import numpy as np

from reinlm.environments import Environment, MakeEnvironment, Question
from reinlm.environments.protocol import check_environment
from reinlm.errors import InputError, RunError, error_line, file_of
from reinlm.records import RewardEvent, Rollout, RolloutGroup, ScoredGroup, Task
from reinlm.rewards.signature import ALWAYS
from reinlm.rollouts.admission import Order, Slot, Wave
from reinlm.rollouts.episode import Limits, run_episode
from reinlm.rollouts.event_loop import EventLoop
from reinlm.rollouts.protocol import Generator, Sampling
from reinlm.rollouts.token_ends import token_ends

if TYPE_CHECKING:
    from reinlm.data.rendering import Renderer
    from reinlm.rewards import Scored, TrainerState
    from reinlm.rewards.attempts import Usage

Phases = Callable[[str], AbstractContextManager[Any]]
"""Measures the time spent in a part of the work: "rollout", and "reward" for what is left to wait for after it."""

TokenEnds = Callable[[Rollout], Sequence[int] | None]
"""For each token that the policy chose: how many characters of the answer's text are complete with it."""

_Score = Callable[[RolloutGroup], "Coroutine[Any, Any, Scored]"]


class Rewards(Protocol):
    """What `reinlm.rewards.RewardSet` offers."""

    @property
    def call(self) -> str:
        """ "group": each group as soon as it is sampled. "batch": all groups in one call of `score`."""

    def score_group(
        self, group: RolloutGroup, state: TrainerState | None, *, columns: Sequence[str], token_ends: TokenEnds
    ) -> Coroutine[Any, Any, Scored]: ...

    def score(
        self, groups: Sequence[RolloutGroup], state: TrainerState | None = None, *, token_ends: TokenEnds
    ) -> Scored: ...


@dataclass(frozen=True)
class Episodes:
    """Everything that an episode needs except its task.

    Example:
        Episodes(engine, renderer, sampling, environment=Question, seed=0)
    """

    engine: Generator
    renderer: Renderer
    sampling: Sampling
    environment: MakeEnvironment = Question
    """Called once an episode."""
    seed: int = 0
    order: Order = "name"
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Sampled:
    """Scored groups, in the order of their tasks."""

    groups: tuple[ScoredGroup, ...]
    failures: Mapping[str, int]
    """By reward: how many answers it failed on."""
    messages: Mapping[str, str]
    """By reward that failed: what went wrong first."""
    usage: Mapping[str, Usage] = field(default_factory=dict)
    """By reward: what its calls cost, and what it logged."""


def sample_groups(
    episodes: Episodes,
    tasks: Sequence[Task],
    *,
    group_size: int,
    tag: str,
    rewards: Rewards | None = None,
    state: TrainerState | None = None,
    loop: EventLoop | None = None,
    phases: Phases = contextlib.nullcontext,
    on_progress: Callable[[int, int], None] | None = None,
) -> Sampled:
    """Run `group_size` episodes of every task, and score them. Called from outside any coroutine, or inside one.

    Sample k of a task is the request `TAG/TASK/k`, turn j ≥ 1 of it `TAG/TASK/k/j`, with the id of the task as `escaped`
    gives it; its noise depends on (seed, tag, task, k, turn) alone. A group is scored as soon as it is finished, while
    others are sampled, and `rewards` is called in the order of the tasks. What an episode earned is first what its
    environment gave, then what reward functions gave; nothing where a reward failed on it, or its environment did.

    Args:
        tag: what the samples are for, such as "12/0/0": the same seed and tag give the same answers.
        rewards: None leaves the environment's own rewards.
        loop: where coroutines run; by default a new one.
        on_progress: called with (episodes ended, episodes in all) when one has ended.

    Raises:
        InputError: two tasks of the same id; what the engine, the renderer or an environment refuses; rewards of an answer
            whose sum float32 does not hold; an environment's reward of the same name as a reward function.
        RunError: an environment or a reward failed, or the engine cannot go on. Everything that was begun is aborted.
    """
    _check(tasks, group_size)
    batch = rewards is not None and rewards.call == "batch"
    ends = token_ends_of(episodes)
    score: _Score | None = None
    if rewards is not None and not batch:
        columns = tuple(dict.fromkeys(name for task in tasks for name in task.columns if name not in ALWAYS))
        score = partial(rewards.score_group, state=state, columns=columns, token_ends=ends)
    main = _sample(episodes, tasks, group_size, tag, score, phases, on_progress)
    if loop is None:
        with EventLoop() as loop:
            groups, scored = loop.run(main)
    else:
        groups, scored = loop.run(main)
    if rewards is None:
        found = Sampled(tuple(_unscored(group) for group in groups), {}, {})
    else:
        if batch:
            with phases("reward"):
                scored = [rewards.score(groups, state, token_ends=ends)]
        found = _merged(scored)
    for group in found.groups:
        _check_sums(group)
    return found


def token_ends_of(episodes: Episodes) -> TokenEnds:
    """Where the answers' texts lie among their tokens, for rewards of lines and spans."""
    return partial(token_ends, episodes.renderer.tokenizer, frozenset(episodes.sampling.stop_token_ids))


async def run_group(episodes: Episodes, task: Task, *, group_size: int, name: str) -> RolloutGroup:
    """Several episodes of one task, named `NAME/0`, `NAME/1`, …; see `run_episode` for what it raises."""
    wave = Wave(episodes.engine, group_size, episodes.order)
    return await _group(episodes, task, name, wave.slots, lambda: None)


async def _sample(
    episodes: Episodes,
    tasks: Sequence[Task],
    group_size: int,
    tag: str,
    score: _Score | None,
    phases: Phases,
    on_progress: Callable[[int, int], None] | None,
) -> tuple[list[RolloutGroup], list[Scored]]:
    """All groups, and what `score` said of each."""
    total = len(tasks) * group_size
    wave = Wave(episodes.engine, total, episodes.order)
    ended = 0

    def one_ended() -> None:
        nonlocal ended
        ended += 1
        if on_progress is not None:
            on_progress(ended, total)

    async def in_order() -> list[Scored]:
        calls = [together.create_task(score(await group)) for group in running] if score else []
        return [await call for call in calls]

    async with _together() as together:
        running = [
            together.create_task(
                _group(
                    episodes,
                    task,
                    f"{tag}/{escaped(task.id)}",
                    wave.slots[group_size * number : group_size * (number + 1)],
                    one_ended,
                )
            )
            for number, task in enumerate(tasks)
        ]
        scoring = together.create_task(in_order())
        with phases("rollout"):
            groups = [await group for group in running]
        with phases("reward") if score else contextlib.nullcontext():
            scored = await scoring
    return groups, scored


async def _group(
    episodes: Episodes, task: Task, name: str, slots: Sequence[Slot], ended: Callable[[], None]
) -> RolloutGroup:
    async def play(number: int, slot: Slot) -> Rollout:
        try:
            return await run_episode(
                slot,
                _made(episodes.environment, task),
                task,
                name=f"{name}/{number}",
                renderer=episodes.renderer,
                sampling=episodes.sampling,
                seed=episodes.seed,
                limits=episodes.limits,
            )
        finally:
            slot.leave()

    async def counted(number: int, slot: Slot) -> Rollout:
        rollout = await play(number, slot)
        ended()
        return rollout

    async with _together() as together:
        playing = [together.create_task(counted(number, slot)) for number, slot in enumerate(slots)]
    return RolloutGroup(task, tuple(one.result() for one in playing))


@contextlib.asynccontextmanager
async def _together() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that raises the first error itself; the other tasks are cancelled, and have ended by then."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from first.__cause__


def _made(make: MakeEnvironment, task: Task) -> Environment:
    name = getattr(make, "__qualname__", repr(make))
    try:
        environment = make()
    except Exception as error:
        text = error_line(error, file_of(make))
        raise RunError(f"environment {name} cannot be made for task {task.id}: {text}") from error
    try:
        check_environment(environment)
    except TypeError as error:
        raise InputError(f"environment {name}: {error}") from error
    return environment


def escaped(task_id: str) -> str:
    """A task's id as a part of request names that keeps them unequal: turn 1 of sample 0 of `a` is not sample 1 of `a/0`.

    An id that ends in a slash and digits, or has a percent sign, is percent-encoded; every other id stays as it is.
    """
    return quote(task_id, safe="") if "%" in task_id or re.search(r"/\d+$", task_id) else task_id


def _check(tasks: Sequence[Task], group_size: int) -> None:
    if group_size < 1:
        raise InputError(f"group_size must be at least 1, not {group_size}")
    twice = [name for name, count in Counter(task.id for task in tasks).items() if count > 1]
    if twice:
        raise InputError(
            f"task {twice[0]!r} stands twice among the tasks to sample",
            hint="the same task would get the same answers; raise group_size instead",
        )


# ---------------------------------------------------------------------------------------------------- what was earned


def _unscored(group: RolloutGroup) -> ScoredGroup:
    return ScoredGroup(group, tuple(_own(rollout) for rollout in group.rollouts))


def _merged(scored: Sequence[Scored]) -> Sampled:
    failures: Counter[str] = Counter()
    messages: dict[str, str] = {}
    usage: dict[str, Usage] = {}
    for one in scored:
        failures.update(one.failures)
        messages = {**one.messages, **messages}
        usage |= {name: usage[name] + used if name in usage else used for name, used in one.usage.items()}
    groups = [_with_own(group, one.failures) for one in scored for group in one.groups]
    return Sampled(tuple(groups), dict(failures), messages, usage)


def _with_own(scored: ScoredGroup, failures: Mapping[str, int]) -> ScoredGroup:
    """The environment's events before those of reward functions, whose names are the keys of `failures`.

    Where a reward failed on some answer, one without any event has none of its environment either: a part of what it
    is worth is missing.
    """
    own = [_own(rollout) for rollout in scored.group.rollouts]
    for name in (event.name for events in own for event in events):
        if name in failures:
            raise InputError(
                f"{scored.group.task.id}: the environment's reward {name!r} has the name of the reward function {name!r}",
                hint=f"give the function a label: reward={{name: {name}, label: {name}_2}}",
            )
    failed = any(failures.values())
    pairs = zip(own, scored.events, strict=True)
    events = tuple(() if failed and not given else (*earned, *given) for earned, given in pairs)
    return replace(scored, events=events)


LARGEST = float(np.finfo(np.float32).max)
"""Of the absolute rewards of an answer, in sum: advantages are float32 in the loss."""


def _check_sums(scored: ScoredGroup) -> None:
    for index, events in enumerate(scored.events):
        if math.fsum(min(abs(event.weight * event.value), 2 * LARGEST) for event in events) > LARGEST:
            given = ", ".join(f"{event.name} {event.value:g} x {event.weight:g}" for event in events)
            raise InputError(
                f"{scored.group.task.id}, answer {index + 1} of {len(scored.events)}: its rewards are too large to be "
                f"added up: {given}",
                hint=f"their absolute values must sum to at most {LARGEST:.3g}, the largest float32",
            )


def _own(rollout: Rollout) -> tuple[RewardEvent, ...]:
    return () if rollout.failed else rollout.events
