"""Calls of one reward: its arguments, its process, and the conversion of its results to events."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, cast, get_args

from reinlm.errors import InputError, RunError
from reinlm.plain import encode
from reinlm.records import NO_TURN, RewardEvent, Rollout
from reinlm.rewards.attempts import Attempts, Once, Policy, Usage
from reinlm.rewards.builtin import Builtin, answer_text
from reinlm.rewards.copies import NoCopyError
from reinlm.rewards.running import OVERRUN_HINT, Function, Logged, joined
from reinlm.rewards.signature import ALWAYS, EXTRA, LOGGERS, Parameters, Style
from reinlm.rewards.spec import Choice
from reinlm.rewards.steps import StepRewards
from reinlm.rewards.values import ALLOWED, Entry, Failure, TrainerState, read_entries
from reinlm.sandbox.pool import WorkerPool
from reinlm.sandbox.worker import OverrunError, Worker, WorkerError

SERVICE = "reinlm.rewards.service"
"""The module that worker processes of rewards serve."""

LOAD_LIMIT = 300.0
"""Seconds that a worker may take to start and import a function; a reward model may have to be read from disk."""

Events = list[RewardEvent] | Failure
"""The reward events of one answer from one reward."""

TokenEnds = Callable[[Rollout], Sequence[int] | None]
"""For each token that the policy chose: how many characters of the answer's text are complete with it. None where the text is
not that of the tokens."""

_LEAVE = 10.0
"""Seconds that a call in this process has to end after it was cancelled."""
_GRACE = 1.0
"""Seconds beyond the limits of single answers until a process that does not keep them is killed."""


@dataclass(frozen=True)
class Sample:
    """An answer to score, and where it belongs."""

    group: int
    index: int
    of: int
    rollout: Rollout
    unit: ClassVar[str] = "answers"

    def each(self, read: Callable[[Rollout], Any]) -> Any:
        """What `read` gives for the answer."""
        return read(self.rollout)

    def __str__(self) -> str:
        return f"{self.rollout.task.id}, answer {self.index + 1} of {self.of}"


@dataclass(frozen=True)
class Call:
    """The answers that one call scores, with the arguments that it is passed."""

    samples: Sequence[Sample]
    arguments: Mapping[str, Any]
    limit: float | None
    """Seconds; None for no limit, in this process."""
    policy: Policy
    token_ends: TokenEnds


@dataclass(frozen=True)
class Settled:
    """What a call gave."""

    events: list[Events]
    """For each of its answers."""
    usage: Usage
    extra: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """By index of the answer: what was logged about it, by column."""


@dataclass(frozen=True)
class Reward:
    """A reward that is ready to be called: `function` here, or the choice's source in a worker process."""

    key: int
    choice: Choice
    function: Function | Builtin | None
    """None: only a worker has it."""
    parameters: Parameters | None
    """None for a built-in reward."""
    pool: WorkerPool | None
    """The pool that queues its calls; None: the caller makes them at once."""
    in_worker: bool
    concurrency: int = 1
    """Answers that an async function of one answer scores at the same time."""
    stays: str | None = None
    """Why a function runs in this process."""

    @property
    def name(self) -> str:
        return self.choice.name

    def names(self, columns: Sequence[str]) -> tuple[str, ...]:
        """The names of what it is passed; an `InputError` names the reward and what it lacks."""
        try:
            if isinstance(self.function, Builtin):
                return ("completions", "completion_ids", *self.function.columns(columns))
            assert self.parameters is not None
            return tuple(name for name in self.parameters.chosen(columns) if name not in LOGGERS)
        except InputError as error:
            raise about(self.choice, error) from error

    def task(self, call: Call) -> Callable[[Worker | None], Settled]:
        """The call as a task for the pool or for the caller; arguments for a worker are encoded immediately."""
        arguments = call.arguments
        if self.in_worker:
            arguments = {
                name: self.encode(name, values) for name, values in arguments.items() if name != "trainer_state"
            }

        def run(worker: Worker | None) -> Settled:
            def call_for(indices: Sequence[int]) -> tuple[list[Entry] | Failure, Logged]:
                part = {
                    name: value if name == "trainer_state" else [value[index] for index in indices]
                    for name, value in arguments.items()
                }
                samples = [call.samples[index] for index in indices]
                return (self._in_worker if self.in_worker else self._here)(call, part, samples, worker)

            def once(indices: Sequence[int]) -> tuple[list[Entry] | Failure, Logged]:
                return (
                    _one_after_another(call_for, indices, call.policy) if self._limits_each(call) else call_for(indices)
                )

            def wait(seconds: float) -> bool:
                if worker is not None:
                    return not worker.stop.wait(seconds)
                time.sleep(seconds)
                return True

            return _settle(self, call, *Attempts(once, call.policy, wait).score(len(call.samples)))

        return run

    def encode(self, name: str, value: Any) -> Any:
        """An argument as a worker process gets it; an `InputError` names the reward, the argument and the type."""
        try:
            return encode(value)
        except InputError as error:
            what = name if name in (*ALWAYS, *EXTRA) else f"the column {name!r}"
            hint = f"{error.hint}; or leave the column out of the function's arguments"
            raise about(self.choice, InputError(f"it cannot be given {what}: {error.message}", hint=hint)) from error

    def _limits_each(self, call: Call) -> bool:
        """Whether a call is made for each answer, with a time limit of its own: of a function of one answer that is not async."""
        parameters = self.parameters
        one = parameters is not None and parameters.style != "lists" and not parameters.asynchronous
        return one and call.limit is not None

    def _limit(self, call: Call, count: int) -> float | None:
        """Seconds of a call: an async function of one answer keeps its own limits, one after another where there are many."""
        if call.limit is None or self.parameters is None:
            return call.limit
        if self.parameters.style == "lists" or not self.parameters.asynchronous:
            return call.limit
        return call.limit * math.ceil(count / self.concurrency) + _GRACE

    def _in_worker(
        self, call: Call, arguments: Mapping[str, Any], samples: Sequence[Sample], worker: Worker | None
    ) -> tuple[list[Entry] | Failure, Logged]:
        assert worker is not None
        count = len(samples)
        limit = self._limit(call, count)
        assert limit is not None
        state = call.arguments.get("trainer_state")
        message = {
            "key": self.key,
            "arguments": arguments,
            "state": None if state is None else astuple(state),
            "count": count,
            "limit": call.limit,
        }
        try:
            worker.start()
            if self.key not in worker.prepared:
                load_into(worker, self.key, self.choice, self.concurrency)
            return worker.call("call", message, limit, partial(_read_reply, count=count))
        except OverrunError as error:
            return Failure(error.text, OVERRUN_HINT, "overran"), Logged()
        except WorkerError as error:
            return Failure(error.text, error.hint, "ended"), Logged()

    def _here(
        self, call: Call, arguments: Mapping[str, Any], samples: Sequence[Sample], worker: Worker | None
    ) -> tuple[list[Entry] | Failure, Logged]:
        """Call the function in this process: with a limit in a thread, which cannot be stopped, though its result is ignored."""
        function, count = self.function, len(samples)
        assert function is not None
        one = Function(function, Parameters((), (), takes_all=True)) if isinstance(function, Builtin) else function
        limit = self._limit(call, count)
        if limit is None or worker is None:
            return one.score(arguments, count, call.limit)
        box: list[tuple[list[Entry] | Failure, Logged]] = []
        thread = threading.Thread(target=lambda: box.append(one.score(arguments, count, call.limit)), daemon=True)
        thread.start()
        deadline = time.monotonic() + limit
        while thread.is_alive() and not worker.stop.is_set() and (left := deadline - time.monotonic()) > 0:
            thread.join(min(left, 0.1))
        if worker.stop.is_set():
            thread.join(_LEAVE)  # an interpreter that ends while a thread computes is aborted
        if not box:
            raise RunError(
                f"{self.choice.noun} {self.name!r} overran its time limit of {call.limit:g} s in this process, "
                f"where it cannot be stopped, {_where(samples)}" + (f": {self.stays}" if self.stays else ""),
                hint="put it into a file and name it as file.py:function, so that it runs in a process that can be "
                f"killed; or raise {self.choice.noun}.time_limit",
            )
        return box[0]


def load_into(worker: Worker, key: int, choice: Choice, concurrency: int = 1) -> Parameters:
    """Import the function of `choice` into the worker.

    Raises:
        InputError: it cannot be had.
        NoCopyError: it is to run in the main process.
        WorkerError: the import took too long, or ended the process.
    """
    assert choice.source is not None
    source = {**vars(choice.source), "options": dict(choice.source.options), "judges": choice.judges}
    try:
        worker.start()
        message = {"key": key, "source": encode(source), "concurrency": concurrency}
        found = worker.call("load", message, LOAD_LIMIT, _read_parameters)
    except OverrunError:
        raise WorkerError(f"did not finish importing within {LOAD_LIMIT:g} s") from None
    if isinstance(found, InputError):
        raise about(choice, found)
    if isinstance(found, NoCopyError):
        raise found
    worker.prepared.add(key)
    return found


def about(choice: Choice, error: InputError) -> InputError:
    """The error with the reward's or the judge's name before it."""
    return InputError(f"{choice.noun} {choice.name!r}: {error.message}", hint=error.hint)


def argument(name: str, samples: Sequence[Sample], state: TrainerState) -> Any:
    """One argument in the form that TRL gives it: a list with an entry for every sample. Built anew for every call."""
    rollouts = [sample.rollout for sample in samples]
    match name:
        case "trainer_state":
            return state
        case "prompts":
            return [messages(rollout.task.prompt) for rollout in rollouts]
        case "completions":
            return [sample.each(_completion) for sample in samples]
        case "completion_ids":
            return [sample.each(_chosen_ids) for sample in samples]
        case "token_ids":
            return [sample.each(_read) for sample in samples]
        case "rows":
            return [dict(rollout.task.columns) for rollout in rollouts]
        case _:
            return [rollout.task.columns.get(name) for rollout in rollouts]


def _chosen_ids(rollout: Rollout) -> list[int]:
    return [token for segment in rollout.segments for token in segment.chosen_ids.tolist()]


def _read(rollout: Rollout) -> dict[str, Any]:
    """The tokens of the last context that the policy read and wrote, and the place of the first that it chose there."""
    segment = rollout.segments[-1]
    chosen = (segment.turns != NO_TURN).nonzero()[0]
    ids = segment.token_ids.tolist()
    return {"ids": ids, "start": int(chosen[0]) if len(chosen) else len(ids)}


def _completion(rollout: Rollout) -> str | list[dict[str, Any]]:
    """Text where the prompt of the row is text, else messages."""
    if rollout.task.from_text and not isinstance(rollout.completion, str):
        return "".join(str(message.get("content") or "") for message in rollout.completion)
    return messages(rollout.completion)


def messages(content: str | tuple[Mapping[str, Any], ...]) -> str | list[dict[str, Any]]:
    """Text as it is, chat messages as a list of new dicts."""
    return content if isinstance(content, str) else [dict(message) for message in content]


def _read_parameters(value: Any) -> Parameters | InputError | NoCopyError:
    """What `load_function` of the service returned; ValueError shows anything else."""
    match value:
        case ["parameters", {"names": [*names], "required": [*required], "takes_all": bool(takes_all), **more}]:
            style, asynchronous, changes = (
                more.pop("style", None),
                more.pop("asynchronous", None),
                more.pop("changes", None),
            )
            texts = all(isinstance(name, str) for name in (*names, *required))
            known = texts and style in get_args(Style) and not more
            if known and isinstance(asynchronous, bool) and isinstance(changes, str | None):
                return Parameters(tuple(names), tuple(required), takes_all, cast(Style, style), asynchronous, changes)
        case ["stays", str(why)]:
            return NoCopyError(why)
        case ["refused", str(message), str() | None as hint]:
            return InputError(message, hint=hint)
    raise ValueError(f"{value!r:.100} instead of a function's parameters")


def _read_reply(value: Any, count: int) -> tuple[list[Entry] | Failure, Logged]:
    """What `call_function` of the service returned; ValueError shows anything else."""
    match value:
        case {"entries": entries, "metrics": dict(metrics), "extra": dict(extra)} if len(value) == 3:
            if all(map(_is_sum, metrics.values())) and all(map(_is_column, extra.values())):
                sums = {name: (float(total), number) for name, (total, number) in metrics.items()}
                return read_entries(entries, count), Logged(sums, extra)
    raise ValueError(f"{value!r:.100} instead of a result")


def _is_sum(value: Any) -> bool:
    match value:
        case [float(total), number] if type(number) is int:
            return number > 0 and math.isfinite(total)
    return False


def _is_column(values: Any) -> bool:
    return isinstance(values, list) and all(
        value is None or isinstance(value, bool | int | float | str) for value in values
    )


def _settle(
    reward: Reward, call: Call, outcome: list[Entry] | Failure, usage: Usage, extra: Mapping[int, Mapping[str, Any]]
) -> Settled:
    """What each answer of a call gets; a failure becomes a `RunError` where it ends the run."""
    if isinstance(outcome, Failure):
        failed = Failure(f"{outcome.text} {_where(call.samples)}", outcome.hint, outcome.cause)
        settled: list[Events] = [failed] * len(call.samples)
    else:
        settled = [_events(reward, call, *pair) for pair in zip(outcome, call.samples, strict=True)]
    failure = next((events for events in settled if isinstance(events, Failure)), None)
    if failure is not None and call.policy.stop:
        raise RunError(
            f"{reward.choice.noun} {reward.name!r} {failure.text}", hint=_advice(failure, call.policy, reward)
        )
    lost = sum(isinstance(events, Failure) for events in settled)
    return Settled(settled, replace(usage, failed=lost), extra)


def _where(samples: Sequence[Sample]) -> str:
    """Which answers a call scores, as the end of a sentence."""
    first = samples[0]
    return f"in a call with {len(samples)} {first.unit}, from {first} on" if len(samples) > 1 else f"for {first}"


def _one_after_another(once: Once, indices: Sequence[int], policy: Policy) -> tuple[list[Entry], Logged]:
    """A call for each answer. The rest fails too after the first failure that ends the run, or two answers in a row that
    overran: then the function is slow, and not the answer."""
    entries: list[Entry] = []
    several: list[Logged] = []
    slow = 0
    for index in indices:
        found, logged = once([index])
        entry = found if isinstance(found, Failure) else found[0]
        entries.append(entry)
        several.append(logged)
        failed = isinstance(entry, Failure) and entry.cause != "passing"
        slow = slow + 1 if isinstance(entry, Failure) and entry.cause == "overran" else 0
        if slow == 2 or (failed and policy.stop):
            left = len(indices) - len(entries)
            return [*entries, *[entry] * left], joined([*several, *[Logged()] * left])
    return entries, joined(several)


def _advice(failure: Failure, policy: Policy, reward: Reward) -> str:
    """What to do about a failure that ends a run."""
    noun = reward.choice.noun
    if reward.choice.judges:
        if failure.cause == "value":
            return f"allowed: a list with, for each pair, {ALLOWED}"
        skip = "return None where there is no judgement"
        failure = replace(failure, hint=(failure.hint or "correct the judge").replace("reward.", "judge."))
    else:
        skip = "set reward.on_reward_error=skip to leave such answers out and count them"
    if failure.cause == "passing":
        again = f"raise {noun}.retries ({policy.retries}) or {noun}.retry_delay ({policy.retry_delay:g} s)"
        return f"{again} where a service may be away for longer; or {skip}"
    return f"{failure.hint}; or {skip}" if failure.hint else f"correct the function, or {skip}"


def _events(reward: Reward, call: Call, entry: Entry, sample: Sample) -> Events:
    """The events of one entry: each step, then the outcome; none for None."""
    if entry is None:
        return []
    if isinstance(entry, Failure):
        return Failure(f"{entry.text} for {sample}", entry.hint, entry.cause)
    name, weight = reward.name, reward.choice.weight
    if not isinstance(entry, StepRewards):
        return [RewardEvent(name, entry, weight=weight)]
    length = sample.rollout.length
    for token, _ in entry.steps:
        if not 0 <= token < length:
            text = f"put a step reward on token {token} of an answer of {length} for {sample}"
            return Failure(text, hint="tokens count from 0, and only those that the policy chose")
    placed = _placed(entry, call.token_ends, sample)
    if isinstance(placed, Failure):
        return placed
    events = [RewardEvent(name, value, token, weight) for token, value in (*entry.steps, *placed)]
    return events if entry.outcome is None else [*events, RewardEvent(name, entry.outcome, weight=weight)]


def _placed(entry: StepRewards, token_ends: TokenEnds, sample: Sample) -> list[tuple[int, float]] | Failure:
    """Rewards on characters as rewards on the tokens that complete them."""
    if not entry.characters:
        return []
    text, ends = answer_text(sample.rollout.completion), token_ends(sample.rollout)
    for character, _ in entry.characters:
        if not 0 <= character < len(text):
            where = f"put a step reward on character {character} of a text of {len(text)} for {sample}"
            return Failure(where, hint="give StepRewards the answer's text as the function received it")
    if ends is None:
        return Failure(f"put a step reward on a character for {sample}, whose text is not that of its tokens",
                       hint="give places as token indices: StepRewards([(token, value), …])")  # fmt: skip
    placed = [(bisect_right(ends, character), value) for character, value in entry.characters]
    if any(token >= len(ends) for token, _ in placed):
        return Failure(f"put a step reward on a character for {sample} that no token completes")
    return placed
