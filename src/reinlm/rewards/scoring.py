"""Score groups of rollouts: call every reward, in worker processes or here, and turn what they return into events."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from reinlm.config import build
from reinlm.errors import InputError, RunError
from reinlm.records import Prompt, RewardEvent, Rollout, RolloutGroup, ScoredGroup
from reinlm.rewards.builtin import Builtin, builtin
from reinlm.rewards.functions import ALWAYS, Parameters, file_of, invoke, load, parameters_of
from reinlm.rewards.processes import Job, Outcome, Pool
from reinlm.rewards.spec import Choice, RewardConfig, RewardSpec, read_spec
from reinlm.rewards.values import Entry, Failure, StepRewards, TrainerState, describe, read_result
from reinlm.rewards.worker import IN_WORKER

_BUILTIN_LANE = "builtin"


@dataclass(frozen=True)
class Scored:
    """What `RewardSet.score` gives."""

    groups: list[ScoredGroup]
    """In the order of the groups that were scored."""
    failures: dict[str, int]
    """By reward: how many answers it failed on. They have no events at all, and so no part in training."""
    messages: dict[str, str]
    """By reward that failed: what went wrong first."""


@dataclass(frozen=True)
class _Sample:
    """An answer to score, and where it belongs."""

    group: int
    index: int
    of: int
    rollout: Rollout

    def __str__(self) -> str:
        return f"{self.rollout.prompt.id}, answer {self.index + 1} of {self.of}"


@dataclass(frozen=True)
class _Reward:
    """A reward that is ready to be called: `function` here, or the choice's source in a worker."""

    key: int
    choice: Choice
    function: Callable[..., Any] | None
    parameters: Parameters | None
    """None for a built-in reward."""
    lane: str
    in_worker: bool

    @property
    def name(self) -> str:
        return self.choice.name

    def arguments(self, columns: Sequence[str]) -> tuple[str, ...]:
        """The names of what it is passed; an `InputError` names the reward and what it lacks."""
        try:
            if isinstance(self.function, Builtin):
                return ("completions", "completion_ids", *self.function.columns(columns))
            assert self.parameters is not None
            return self.parameters.chosen(columns)
        except InputError as error:
            raise _about(self.name, error) from error


class RewardSet:
    """Several rewards with their weights. Made by `build_rewards`; a context manager that ends its processes.

    Example:
        with build_rewards(["math", {"name": "length", "max": 512, "weight": 0.1}]) as rewards:
            scored = rewards.score(groups, TrainerState(global_step=3, max_steps=100))
    """

    def __init__(self, rewards: Sequence[_Reward], pool: Pool, *, time_limit: float | None, stop: bool) -> None:
        self._rewards = tuple(rewards)
        self._pool = pool
        self._limit = time_limit
        self._stop = stop
        self._finalizer = weakref.finalize(self, pool.close)

    @property
    def names(self) -> tuple[str, ...]:
        """By which the rewards are logged, in their order."""
        return tuple(reward.name for reward in self._rewards)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each reward by its name."""
        return {reward.name: reward.choice.weight for reward in self._rewards}

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Raise `InputError` where a reward needs a column that these prompts, or one of them, do not have."""
        if not prompts:
            return
        columns = _columns(prompts)
        for reward in self._rewards:
            for name in reward.arguments(columns):
                if not isinstance(reward.function, Builtin) or name in ALWAYS:
                    continue
                for prompt in prompts:
                    if prompt.columns.get(name) is None:
                        raise InputError(f"reward {reward.name!r}: {prompt.id} has no value in the column {name!r}")

    def score(self, groups: Sequence[RolloutGroup], state: TrainerState | None = None) -> Scored:
        """The rewards of every rollout, as events in the order of the rewards.

        A rollout whose end is `error` is not scored. An answer that a reward failed on raises `RunError`, which names
        both; with `on_error="skip"` it is left without any event, and counted. A function that overruns its limit in
        this process raises `RunError` in either case, because it cannot be stopped.
        """
        if not self._finalizer.alive:
            raise RunError("these rewards are closed", hint="score inside the `with` block, or before close()")
        self.check([group.prompt for group in groups])
        samples = [
            _Sample(number, index, len(group.rollouts), rollout)
            for number, group in enumerate(groups)
            for index, rollout in enumerate(group.rollouts)
            if rollout.end != "error"
        ]
        events: dict[tuple[int, int], list[RewardEvent]] = {(s.group, s.index): [] for s in samples}
        failures = dict.fromkeys(self.names, 0)
        messages: dict[str, str] = {}
        failed: set[tuple[int, int]] = set()
        for reward, entries in self._entries(samples, state or TrainerState()):
            for sample, entry in zip(samples, entries, strict=True):
                found = _events(reward, entry, sample)
                if isinstance(found, Failure):
                    self._fail(reward, found)
                    failures[reward.name] += 1
                    messages.setdefault(reward.name, f"reward {reward.name!r} {found.text}")
                    failed.add((sample.group, sample.index))
                else:
                    events[sample.group, sample.index] += found
        for place in failed:
            events[place] = []
        scored = [
            ScoredGroup(group, tuple(tuple(events.get((number, index), ())) for index in range(len(group.rollouts))))
            for number, group in enumerate(groups)
        ]
        return Scored(scored, failures, messages)

    def close(self) -> None:
        """End the worker processes; the set cannot score any more. Closing twice does nothing."""
        self._finalizer()

    def __enter__(self) -> RewardSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _entries(self, samples: Sequence[_Sample], state: TrainerState) -> list[tuple[_Reward, list[Entry]]]:
        """What each reward says of each sample. The workers' calls all go out at once; those of this process follow."""
        if not samples:
            return []
        columns = _columns([sample.rollout.prompt for sample in samples])
        calls = {reward.key: _calls(reward, samples, columns, state) for reward in self._rewards}
        jobs = [
            Job(reward.key, reward.choice.source, reward.lane, self._limit, arguments, len(part))
            for reward in self._rewards
            if reward.in_worker and reward.choice.source is not None and self._limit is not None
            for part, arguments in calls[reward.key]
        ]
        outcomes = iter(self._pool.run(jobs, stop_early=self._stop))
        entries = []
        for reward in self._rewards:
            found: list[Entry] = []
            for part, arguments in calls[reward.key]:
                outcome = next(outcomes) if reward.in_worker else self._call_here(reward, arguments, len(part))
                found += self._spread(reward, part, outcome)
            entries.append((reward, found))
        return entries

    def _spread(self, reward: _Reward, part: Sequence[_Sample], outcome: Outcome) -> list[Entry]:
        """The entries of one call, failures named with their samples; what failed as a whole fails for each of them."""
        if isinstance(outcome, InputError):
            raise _about(reward.name, outcome)
        if isinstance(outcome, Failure):
            where = f"for {part[0]}" if len(part) == 1 else f"in a call with {len(part)} answers, from {part[0]} on"
            failure = Failure(f"{outcome.text} {where}", outcome.hint)
            self._fail(reward, failure)
            return [failure] * len(part)
        # A call that was not finished, because another one failed first, has no outcome; that failure stops the run.
        entries = outcome if isinstance(outcome, list) else [None] * len(part)
        return [
            Failure(f"{entry.text} for {sample}", entry.hint) if isinstance(entry, Failure) else entry
            for sample, entry in zip(part, entries, strict=True)
        ]

    def _fail(self, reward: _Reward, failure: Failure) -> None:
        if self._stop:
            skip = "set on_reward_error=skip to leave such answers out and count them"
            hint = f"{failure.hint}; or {skip}" if failure.hint else f"mend the function, or {skip}"
            raise RunError(f"reward {reward.name!r} {failure.text}", hint=hint)

    def _call_here(self, reward: _Reward, arguments: Mapping[str, Any], count: int) -> list[Entry] | Failure:
        """Call a function in this process: with a time limit in a thread, which can be left behind but not stopped."""
        assert reward.function is not None
        function = reward.function
        if self._limit is None or isinstance(function, Builtin):
            return _guarded(function, arguments, count)
        box: list[list[Entry] | Failure] = []
        thread = threading.Thread(target=lambda: box.append(_guarded(function, arguments, count)), daemon=True)
        thread.start()
        thread.join(self._limit)
        if not box:
            raise RunError(
                f"reward {reward.name!r} overran its time limit of {self._limit:g} s in this process, "
                "where it cannot be stopped",
                hint="put it into a file and name it as file.py:function, so that it runs in a process that can be "
                "killed; or raise time_limit",
            )
        return box[0]


def build_rewards(
    spec: RewardSpec | RewardConfig,
    *,
    time_limit: float | None = 60.0,
    workers: int = 2,
    on_error: Literal["stop", "skip"] = "stop",
) -> RewardSet:
    """Find, import and check the rewards that `spec` names.

    Importable functions run in worker processes that are killed when they overrun `time_limit` (seconds a call).
    Lambdas, closures, objects and functions of the main program run in this process. A `RewardConfig` brings the
    other arguments itself.

    Raises:
        InputError: an unknown name, an option that does not exist, a file or function that cannot be imported.
    """
    if isinstance(spec, RewardConfig):
        config = spec
    else:
        read_spec(spec)  # its messages say more than those that come through the configuration
        given = {"functions": spec, "time_limit": time_limit, "workers": workers, "on_reward_error": on_error}
        config = build(RewardConfig, given)
    if os.environ.get(IN_WORKER):
        raise InputError(
            "rewards are built while a reward function is being imported",
            hint='the file that holds the function also starts a run: guard that with `if __name__ == "__main__":`',
        )
    pool = Pool({_BUILTIN_LANE: config.workers})
    try:
        rewards = [
            _ready(key, choice, pool, config.time_limit) for key, choice in enumerate(read_spec(config.functions))
        ]
    except BaseException:
        pool.close()
        raise
    return RewardSet(rewards, pool, time_limit=config.time_limit, stop=config.on_reward_error == "stop")


def _ready(key: int, choice: Choice, pool: Pool, limit: float | None) -> _Reward:
    """Load the function where it will run, so that one that cannot be used is found before any training."""
    source, lane = choice.source, f"function {key}"
    if source is not None and source.kind == "builtin":
        check = builtin(source.place, source.options)
        return _Reward(key, choice, check, None, _BUILTIN_LANE, limit is not None and check.killable)
    if source is not None and limit is not None:
        (outcome,) = pool.run([Job(key, source, lane, limit)])
        if isinstance(outcome, Parameters):
            return _Reward(key, choice, None, outcome, lane, True)
        if choice.function is None:
            assert isinstance(outcome, InputError | Failure)
            raise _about(choice.name, InputError(outcome.text) if isinstance(outcome, Failure) else outcome)
    try:
        function = choice.function
        if function is None:
            assert source is not None
            function = load(source)
        return _Reward(key, choice, function, parameters_of(function), lane, False)
    except InputError as error:
        raise _about(choice.name, error) from error


def _calls(
    reward: _Reward, samples: Sequence[_Sample], columns: Sequence[str], state: TrainerState
) -> list[tuple[Sequence[_Sample], dict[str, Any]]]:
    """The calls that score the samples: one for all of them, or for a built-in reward one each."""
    names = reward.arguments(columns)
    parts = [[sample] for sample in samples] if isinstance(reward.function, Builtin) else [samples]
    return [(part, {name: _argument(name, part, state) for name in names}) for part in parts]


def _argument(name: str, samples: Sequence[_Sample], state: TrainerState) -> Any:
    """One argument in the form that TRL gives it: a list with an entry for every sample. Built anew for every call."""
    rollouts = [sample.rollout for sample in samples]
    match name:
        case "trainer_state":
            return state
        case "prompts":
            return [_plain(rollout.prompt.content) for rollout in rollouts]
        case "completions":
            return [_plain(rollout.completion) for rollout in rollouts]
        case "completion_ids":
            return [[token for segment in rollout.segments for token in segment.chosen_ids] for rollout in rollouts]
        case _:
            return [rollout.prompt.columns.get(name) for rollout in rollouts]


def _plain(content: str | tuple[Mapping[str, Any], ...]) -> str | list[dict[str, Any]]:
    return content if isinstance(content, str) else [dict(message) for message in content]


def _columns(prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """Every column that some prompt has, in order of appearance, except those named like another argument."""
    return tuple(dict.fromkeys(name for prompt in prompts for name in prompt.columns if name not in ALWAYS))


def _guarded(function: Callable[..., Any], arguments: Mapping[str, Any], count: int) -> list[Entry] | Failure:
    try:
        return read_result(invoke(function, arguments), count)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        return Failure(f"raised {describe(error, file_of(function))}")


def _events(reward: _Reward, entry: Entry, sample: _Sample) -> list[RewardEvent] | Failure:
    """The events of one entry: each step, then the outcome; none for None."""
    if entry is None or isinstance(entry, Failure):
        return entry if isinstance(entry, Failure) else []
    name, weight = reward.name, reward.choice.weight
    steps, verdict = (entry.steps, entry.outcome) if isinstance(entry, StepRewards) else ((), entry)
    length = sample.rollout.length
    for token, _ in steps:
        if not 0 <= token < length:
            text = f"put a step reward on token {token} of an answer of {length} for {sample}"
            return Failure(text, hint="tokens count from 0, and only those that the policy chose")
    events = [RewardEvent(name, value, token, weight) for token, value in steps]
    return events if verdict is None else [*events, RewardEvent(name, verdict, weight=weight)]


def _about(name: str, error: InputError) -> InputError:
    return InputError(f"reward {name!r}: {error.message}", hint=error.hint)
