"""Calls of one reward: its arguments, its process, and the conversion of its results to events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

from reinlm.errors import InputError, RunError, error_line, file_of
from reinlm.plain import encode
from reinlm.records import RewardEvent, Rollout
from reinlm.rewards.builtin import Builtin
from reinlm.rewards.functions import ALWAYS, Parameters, invoke
from reinlm.rewards.spec import Choice
from reinlm.rewards.values import Entry, Failure, StepRewards, TrainerState, read_entries, read_result
from reinlm.sandbox.pool import WorkerPool
from reinlm.sandbox.worker import OverrunError, Worker, WorkerError

SERVICE = "reinlm.rewards.service"
"""The module that worker processes of rewards serve."""

LOAD_LIMIT = 300.0
"""Seconds that a worker may take to start and import a function; a reward model may have to be read from disk."""

Events = list[RewardEvent] | Failure
"""The reward events of one answer from one reward."""


@dataclass(frozen=True)
class Sample:
    """An answer to score, and where it belongs."""

    group: int
    index: int
    of: int
    rollout: Rollout

    def __str__(self) -> str:
        return f"{self.rollout.task.id}, answer {self.index + 1} of {self.of}"


@dataclass(frozen=True)
class Call:
    """The answers that one call scores, with the arguments that it is passed."""

    samples: Sequence[Sample]
    arguments: Mapping[str, Any]
    limit: float | None
    """Seconds; None for no limit, in this process."""
    stop: bool
    """A failure ends the run."""


@dataclass(frozen=True)
class Reward:
    """A reward that is ready to be called: `function` here, or the choice's source in a worker process."""

    key: int
    choice: Choice
    function: Callable[..., Any] | None
    parameters: Parameters | None
    """None for a built-in reward."""
    pool: WorkerPool | None
    """The pool that queues its calls; None: the caller makes them at once."""
    in_worker: bool

    @property
    def name(self) -> str:
        return self.choice.name

    def names(self, columns: Sequence[str]) -> tuple[str, ...]:
        """The names of what it is passed; an `InputError` names the reward and what it lacks."""
        try:
            if isinstance(self.function, Builtin):
                return ("completions", "completion_ids", *self.function.columns(columns))
            assert self.parameters is not None
            return self.parameters.chosen(columns)
        except InputError as error:
            raise about(self.name, error) from error

    def task(self, call: Call) -> Callable[[Worker | None], list[Events]]:
        """The call as a task for the pool or for the caller; arguments for a worker are encoded immediately."""
        if not self.in_worker:
            return lambda worker: _settle(self, call, self._here(call, worker))
        plain = {name: self.encode(name, value) for name, value in call.arguments.items() if name != "trainer_state"}
        state = call.arguments.get("trainer_state")
        message = {
            "key": self.key,
            "arguments": plain,
            "state": None if state is None else astuple(state),
            "count": len(call.samples),
        }
        return lambda worker: _settle(self, call, self._in_worker(call, message, worker))

    def encode(self, name: str, value: Any) -> Any:
        """An argument as a worker process gets it; an `InputError` names the reward, the argument and the type."""
        try:
            return encode(value)
        except InputError as error:
            what = name if name in ALWAYS else f"the column {name!r}"
            hint = f"{error.hint}; or leave the column out of the function's arguments"
            raise about(self.name, InputError(f"it cannot be given {what}: {error.message}", hint=hint)) from error

    def _in_worker(self, call: Call, message: Mapping[str, Any], worker: Worker | None) -> list[Entry] | Failure:
        assert worker is not None
        assert call.limit is not None
        try:
            worker.start()
            if self.key not in worker.prepared:
                load_into(worker, self.key, self.choice)
            return worker.call("call", message, call.limit, partial(read_entries, count=len(call.samples)))
        except WorkerError as error:
            return Failure(error.text, error.hint)

    def _here(self, call: Call, worker: Worker | None) -> list[Entry] | Failure:
        """Call the function in this process: with a limit in a thread, which cannot be stopped, though its result is ignored."""
        assert self.function is not None
        if call.limit is None or worker is None:
            return _guarded(self.function, call)
        box: list[list[Entry] | Failure] = []
        function = self.function
        thread = threading.Thread(target=lambda: box.append(_guarded(function, call)), daemon=True)
        thread.start()
        deadline = time.monotonic() + call.limit
        while thread.is_alive() and not worker.stop.is_set() and (left := deadline - time.monotonic()) > 0:
            thread.join(min(left, 0.1))
        if not box:
            raise RunError(
                f"reward {self.name!r} overran its time limit of {call.limit:g} s in this process, "
                "where it cannot be stopped",
                hint="put it into a file and name it as file.py:function, so that it runs in a process that can be "
                "killed; or raise time_limit",
            )
        return box[0]


def load_into(worker: Worker, key: int, choice: Choice) -> Parameters:
    """Import the function of `choice` into the worker.

    Raises:
        InputError: it cannot be had.
        WorkerError: the import took too long, or ended the process.
    """
    assert choice.source is not None
    source = {**vars(choice.source), "options": dict(choice.source.options)}
    try:
        worker.start()
        found = worker.call("load", {"key": key, "source": encode(source)}, LOAD_LIMIT, _read_parameters)
    except OverrunError:
        raise WorkerError(f"did not finish importing within {LOAD_LIMIT:g} s") from None
    if isinstance(found, InputError):
        raise about(choice.name, found)
    worker.prepared.add(key)
    return found


def about(name: str, error: InputError) -> InputError:
    """The error with the reward's name before it."""
    return InputError(f"reward {name!r}: {error.message}", hint=error.hint)


def argument(name: str, samples: Sequence[Sample], state: TrainerState) -> Any:
    """One argument in the form that TRL gives it: a list with an entry for every sample. Built anew for every call."""
    rollouts = [sample.rollout for sample in samples]
    match name:
        case "trainer_state":
            return state
        case "prompts":
            return [messages(rollout.task.content) for rollout in rollouts]
        case "completions":
            return [messages(rollout.completion) for rollout in rollouts]
        case "completion_ids":
            return [[token for segment in rollout.segments for token in segment.chosen_ids] for rollout in rollouts]
        case _:
            return [rollout.task.columns.get(name) for rollout in rollouts]


def messages(content: str | tuple[Mapping[str, Any], ...]) -> str | list[dict[str, Any]]:
    """Text as it is, chat messages as a list of new dicts."""
    return content if isinstance(content, str) else [dict(message) for message in content]


def _read_parameters(value: Any) -> Parameters | InputError:
    """What `load_function` of the service returned; ValueError shows anything else."""
    match value:
        case ["parameters", [*names], [*required], bool(takes_all)]:
            if all(isinstance(name, str) for name in (*names, *required)):
                return Parameters(tuple(names), tuple(required), takes_all)
        case ["refused", str(message), str() | None as hint]:
            return InputError(message, hint=hint)
    raise ValueError(f"{value!r:.100} instead of a function's parameters")


def _guarded(function: Callable[..., Any], call: Call) -> list[Entry] | Failure:
    try:
        return read_result(invoke(function, call.arguments), len(call.samples))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        return Failure(f"raised {error_line(error, file_of(function))}")


def _settle(reward: Reward, call: Call, outcome: list[Entry] | Failure) -> list[Events]:
    """What each answer of a call gets; a failure becomes a `RunError` where it ends the run."""
    if isinstance(outcome, Failure):
        first = call.samples[0]
        many = f"in a call with {len(call.samples)} answers, from {first} on"
        where = many if len(call.samples) > 1 else f"for {first}"
        settled: list[Events] = [Failure(f"{outcome.text} {where}", outcome.hint)] * len(call.samples)
    else:
        settled = [_events(reward, *pair) for pair in zip(outcome, call.samples, strict=True)]
    failure = next((events for events in settled if isinstance(events, Failure)), None)
    if failure is not None and call.stop:
        skip = "set reward.on_reward_error=skip to leave such answers out and count them"
        hint = f"{failure.hint}; or {skip}" if failure.hint else f"correct the function, or {skip}"
        raise RunError(f"reward {reward.name!r} {failure.text}", hint=hint)
    return settled


def _events(reward: Reward, entry: Entry, sample: Sample) -> Events:
    """The events of one entry: each step, then the outcome; none for None."""
    if entry is None:
        return []
    if isinstance(entry, Failure):
        return Failure(f"{entry.text} for {sample}", entry.hint)
    name, weight = reward.name, reward.choice.weight
    steps, outcome = (entry.steps, entry.outcome) if isinstance(entry, StepRewards) else ((), entry)
    length = sample.rollout.length
    for token, _ in steps:
        if not 0 <= token < length:
            text = f"put a step reward on token {token} of an answer of {length} for {sample}"
            return Failure(text, hint="tokens count from 0, and only those that the policy chose")
    events = [RewardEvent(name, value, token, weight) for token, value in steps]
    return events if outcome is None else [*events, RewardEvent(name, outcome, weight=weight)]
