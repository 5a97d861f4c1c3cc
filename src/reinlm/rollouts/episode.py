"""One episode: a model and an environment in turns."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from reinlm.environments import Environment, Observation
from reinlm.environments.calls import Calls, EnvironmentFailed
from reinlm.environments.protocol import name_of
from reinlm.errors import InputError
from reinlm.records import RewardEvent, Rollout, Task
from reinlm.rollouts.protocol import Generator, Request, Sampling
from reinlm.rollouts.transcript import Transcript

if TYPE_CHECKING:
    from reinlm.data.rendering import Renderer


@dataclass(frozen=True)
class Limits:
    """What cuts an episode off, beside the tokens of a turn and the context; None is no limit.

    Example:
        Limits(max_turns=8, environment_time_limit=10.0)
    """

    max_turns: int | None = None
    episode_time_limit: float | None = None
    """Seconds, time that requests wait included. What it cuts off depends on the clock: recipes allow it only with
    the order "arrival"."""
    environment_time_limit: float | None = 60.0
    """Seconds for each call of the environment; one that takes longer has failed. A run in which one is skipped for it
    cannot be repeated to the bit."""
    on_environment_error: Literal["stop", "skip"] = "stop"


@dataclass(frozen=True)
class _Ending:
    terminated: bool
    truncated: bool
    reason: str


async def run_episode(
    engine: Generator,
    environment: Environment,
    task: Task,
    *,
    name: str,
    renderer: Renderer,
    sampling: Sampling,
    seed: int = 0,
    limits: Limits = Limits(),
) -> Rollout:
    """Play one episode to its end.

    The first turn is the request `name`, turn k ≥ 1 the request `NAME/k`. A turn that a limit cuts off ("length",
    "context") truncates the episode, and the environment is not stepped with it: what it earned before stays, and a
    reward that only the end of the task brings is absent. An episode also ends truncated after `max_turns` turns
    ("turns"), where what the environment said leaves no room in the context ("context"), and when its time is up
    ("time"); a turn that is being written then is dropped.

    Args:
        engine: an engine, or a slot of a `Wave`.
        environment: made for this episode alone.
        renderer: turns content into tokens and tokens into content.

    Returns:
        The rollout, with what the environment gave as events, each on the last token of its turn. Where the environment
        failed and `on_environment_error` is "skip": what was sampled until then, neither terminated nor truncated, with
        the error as its reason.

    Raises:
        InputError, RunError: the environment failed, and `on_environment_error` is "stop": one line names its class and
            the task. The first content cannot be tokenised or leaves no room in the context. The engine cannot go on.
    """
    transcript = Transcript(task, renderer, sampling)
    events: list[RewardEvent] = []
    try:
        async with (
            asyncio.timeout(limits.episode_time_limit) as clock,
            Calls(environment, task, limits.environment_time_limit) as calls,
        ):
            ending = await _play(engine, calls, transcript, events, Request(name, (), sampling, seed), limits.max_turns)
    except TimeoutError:
        if not clock.expired():
            raise
        ending = _Ending(False, True, "time")
    except EnvironmentFailed as failed:
        if limits.on_environment_error == "stop":
            raise failed.error from failed.__cause__
        ending = _Ending(False, False, failed.error.message)
    segments, completion = transcript.finish()
    return Rollout(task, segments, completion, ending.terminated, ending.truncated, ending.reason, tuple(events))


async def _play(
    engine: Generator,
    calls: Calls,
    transcript: Transcript,
    events: list[RewardEvent],
    first: Request,
    max_turns: int | None,
) -> _Ending:
    context = engine.capabilities.context_length
    observation = await calls.reset()
    _take(calls, transcript, observation, turn=0)
    for turn in itertools.count():
        if turn and context is not None and len(transcript.context) >= context:
            return _Ending(False, True, "context")
        name = f"{first.id}/{turn}" if turn else first.id
        completion = await engine.generate(Request(name, tuple(transcript.context), first.sampling, first.seed))
        action = transcript.answer(completion, turn)
        if completion.reason != "stop":
            return _Ending(False, True, completion.reason)
        result = await calls.step(action)
        events += transcript.events(result.reward, name_of(calls.environment))
        if result.terminated or result.truncated:
            reason = str(result.info.get("reason", "environment"))
            return _Ending(result.terminated, not result.terminated, reason)
        if turn + 1 == max_turns:
            return _Ending(False, True, "turns")
        _take(calls, transcript, result.observation, turn + 1)
    raise AssertionError("an episode ends inside the loop")


def _take(calls: Calls, transcript: Transcript, observation: Observation, turn: int) -> None:
    """Give the transcript an observation. One that cannot be read is the environment's fault; the task's content is not."""
    try:
        if turn:
            transcript.observe(observation)
        else:
            transcript.begin(observation)
    except InputError as error:
        if observation is None:
            raise
        text = " ".join(error.message.split())
        raise calls.failed(f"the observation of turn {turn} cannot be read: {text}") from error
