"""Score groups of rollouts: call every reward, in worker processes or in this one, and convert the results to events."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from reinlm.errors import InputError, ReinlmError, RunError
from reinlm.records import RewardEvent, Rollout, RolloutGroup, ScoredGroup, Task
from reinlm.rewards.attempts import Policy, Usage
from reinlm.rewards.builtin import Builtin, Math
from reinlm.rewards.calls import Call, Reward, Sample, Settled, TokenEnds, argument, messages
from reinlm.rewards.learned import StatelessReward
from reinlm.rewards.running import Function
from reinlm.rewards.signature import ALWAYS
from reinlm.rewards.states import has_state, load_state, state_of
from reinlm.rewards.values import Failure, TrainerState
from reinlm.sandbox.pool import WorkerPool

if TYPE_CHECKING:
    from reinlm.models import RewardModel

CallMode = Literal["group", "batch"]


@dataclass(frozen=True)
class Scored:
    """The result of `RewardSet.score`."""

    groups: list[ScoredGroup]
    """In the order of the groups that were scored."""
    failures: dict[str, int]
    """By reward: how many answers it failed on. They have no events at all, and so no part in training."""
    messages: dict[str, str]
    """By reward that failed: what went wrong first."""
    usage: Mapping[str, Usage] = field(default_factory=dict, compare=False)
    """By reward: what its calls cost, and what it logged."""


def no_text(rollout: Rollout) -> None:
    """The places of an answer's text among its tokens are unknown."""


@dataclass(frozen=True)
class Begun:
    """A call that was made or is queued in its pool."""

    reward: Reward
    samples: Sequence[Sample]
    future: Future[Settled]


class RewardSet:
    """Several rewards with their weights. Made by `build_rewards`; a context manager that ends its processes.

    Example:
        with build_rewards(["math", {"name": "length", "max": 512, "weight": 0.1}]) as rewards:
            scored = rewards.score(groups, TrainerState(global_step=3, max_steps=100))
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        pools: Sequence[WorkerPool],
        *,
        time_limit: float | None,
        policy: Policy,
        call: CallMode,
    ) -> None:
        self._rewards = tuple(rewards)
        self._limit = time_limit
        self._policy = policy
        self._call = call
        self._finalizer = weakref.finalize(self, close_pools, pools)

    @property
    def names(self) -> tuple[str, ...]:
        """By which the rewards are logged, in their order."""
        return tuple(reward.name for reward in self._rewards)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each reward by its name."""
        return {reward.name: reward.choice.weight for reward in self._rewards}

    @property
    def reads(self) -> Builtin:
        """What says when two answers are the same in a vote: the first reward, or `math` where that is none of reinlm's."""
        first = self._rewards[0].function
        return first if isinstance(first, Builtin) else Math()

    @property
    def models(self) -> dict[str, RewardModel | None]:
        """The learned models among the rewards, by name; None for one in a process of its own."""
        found: dict[str, RewardModel | None] = {}
        for reward in self._rewards:
            source, own = reward.choice.source, reward.function
            if isinstance(own, Function) and isinstance(own.call, StatelessReward):
                found[reward.name] = own.call.model
            elif reward.in_worker and source is not None and (source.kind, source.function) == ("part", "model"):
                found[reward.name] = None
        return found

    @property
    def on_error(self) -> Literal["stop", "skip"]:
        """What becomes of a run in which a function fails."""
        return "stop" if self._policy.stop else "skip"

    @property
    def call(self) -> CallMode:
        """What one call of a function scores: a "group", or the "batch" of a step."""
        return self._call

    def check(self, prompts: Sequence[Task]) -> None:
        """Raise `InputError` where a reward needs a column that these prompts, or one of them, do not have.

        Also where a reward in a worker process takes a column with values that cannot be sent there.
        """
        columns = columns_of(prompts)
        self._require(prompts, columns)
        for name in (*columns, "prompts"):
            taking = [
                reward for reward in self._rewards if prompts and reward.in_worker and name in reward.names(columns)
            ]
            for prompt in prompts if taking else ():
                taking[0].encode(name, messages(prompt.prompt) if name == "prompts" else prompt.columns.get(name))

    def score(
        self, groups: Sequence[RolloutGroup], state: TrainerState | None = None, *, token_ends: TokenEnds = no_text
    ) -> Scored:
        """The rewards of every rollout, as events in the order of the rewards.

        A function is called once for each group, in order, or with `call="batch"` once for all groups. Either way the
        columns of a call are those of all groups together.

        A rollout whose end is `error` is not scored. A call that fails is repeated where the cause may pass. An answer
        that a reward failed on raises `RunError`, which names both; with `on_error="skip"` it is left without any event, and
        counted. A function that overruns its limit in this process raises `RunError` in either case, because it cannot be
        stopped.

        Args:
            token_ends: where the answers' texts lie among their tokens, for `StepRewards` of lines and spans.
        """
        begun = self._begin(groups, state, columns_of([group.task for group in groups]), token_ends)
        with ended(begun):
            return self._scored(groups, begun)

    def score_group(
        self,
        group: RolloutGroup,
        state: TrainerState | None = None,
        *,
        columns: Sequence[str] | None = None,
        token_ends: TokenEnds = no_text,
    ) -> Coroutine[Any, Any, Scored]:
        """`score` for one group, to be awaited; it does not block the event loop.

        The calls queue at once, so every function is called in the order of the calls of this method. A function that
        runs in this process without a time limit is called before it returns.

        Args:
            columns: those of the data set, where not every row has all; None: those of this group's prompt.
            token_ends: as of `score`.

        Raises:
            InputError: the rewards were built with `call="batch"`.
        """
        if self._call == "batch":
            raise InputError(
                "reward.call=batch asks for one call for all groups of a step, so one group cannot be scored alone",
                hint="set reward.call=group, or call score() with all groups",
            )
        begun = self._begin([group], state, columns_of([group.task]) if columns is None else columns, token_ends)
        return self._finish([group], begun)

    def state_dict(self) -> dict[str, Any]:
        """By reward: the state of each object that has `state_dict` and `load_state_dict`."""
        return {name: state_of(name, call) for name, call in self._objects().items()}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Give the objects their states back; `InputError` where one of them is no longer there."""
        known = self._objects()
        missing = sorted(states.keys() - known.keys())
        if missing:
            raise InputError(
                f"the run to resume had rewards with state that are not given: {', '.join(missing)}",
                hint="resume with the same rewards",
            )
        for name, state in states.items():
            load_state(name, known[name], state)

    @property
    def lost(self) -> tuple[str, ...]:
        """A line for each object that changes and keeps nothing in checkpoints, which a resumed run starts again."""
        return tuple(
            f"reward {reward.name!r} is an object that changes its {reward.parameters.changes!r}, which no checkpoint holds: "
            "it starts again; write state_dict and load_state_dict to keep it"
            for reward in self._rewards
            if reward.parameters is not None and reward.parameters.changes
        )

    def _objects(self) -> dict[str, Any]:
        """By name: the rewards that keep a state in checkpoints, all of which run in this process."""
        here = {reward.name: reward.function.call for reward in self._rewards if isinstance(reward.function, Function)}
        return {name: call for name, call in here.items() if has_state(call)}

    def close(self) -> None:
        """End the worker processes; afterwards the set cannot score. Closing twice does nothing.

        Those of built-in rewards stay for the next set, and end with this process.
        """
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require(self, prompts: Sequence[Task], columns: Sequence[str]) -> None:
        for reward in self._rewards if prompts else ():
            for name in reward.names(columns):
                if not isinstance(reward.function, Builtin) or name in ALWAYS:
                    continue
                for prompt in prompts:
                    if prompt.columns.get(name) is None:
                        raise InputError(f"reward {reward.name!r}: {prompt.id} has no value in the column {name!r}")

    def _begin(
        self,
        groups: Sequence[RolloutGroup],
        state: TrainerState | None,
        columns: Sequence[str],
        token_ends: TokenEnds,
    ) -> list[Begun]:
        """Queue the calls of all rewards for groups, in portions as `call` says."""
        self._require([group.task for group in groups], columns)
        samples = [
            [
                Sample(number, index, len(group.rollouts), rollout)
                for index, rollout in enumerate(group.rollouts)
                if not rollout.failed
            ]
            for number, group in enumerate(groups)
        ]
        parts = [[sample for part in samples for sample in part]] if self._call == "batch" else samples
        return self.queued([part for part in parts if part], columns, state or TrainerState(), token_ends)

    def queued(
        self, parts: Sequence[Sequence[Sample]], columns: Sequence[str], state: TrainerState, token_ends: TokenEnds
    ) -> list[Begun]:
        """Queue all calls of all rewards for portions of samples; then make those that need no queue.

        Raises RunError after `close()`.
        """
        if not self._finalizer.alive:
            raise RunError("these rewards are closed", hint="score inside the `with` block, or before close()")
        calls = [
            (reward, call)
            for part in parts
            for reward in self._rewards
            for call in self._calls(reward, part, columns, state, token_ends)
        ]
        tasks = [(reward, call, reward.task(call)) for reward, call in calls]
        begun: dict[int, Begun] = {}
        try:
            for index, (reward, call, task) in enumerate(tasks):
                if reward.pool is not None:
                    begun[index] = Begun(reward, call.samples, reward.pool.submit(task))
            for index, (reward, call, task) in enumerate(tasks):
                if reward.pool is None:
                    begun[index] = Begun(reward, call.samples, _made_at_once(task))
        except BaseException:
            _cancel(list(begun.values()))
            raise
        return [begun[index] for index in range(len(tasks))]

    def _calls(
        self,
        reward: Reward,
        samples: Sequence[Sample],
        columns: Sequence[str],
        state: TrainerState,
        token_ends: TokenEnds,
    ) -> list[Call]:
        """The calls that score the samples: one for all of them, or for a built-in reward one each."""
        names = reward.names(columns)
        parts = [[sample] for sample in samples] if isinstance(reward.function, Builtin) else [samples]
        return [
            Call(part, {name: argument(name, part, state) for name in names}, self._limit, self._policy, token_ends)
            for part in parts
        ]

    async def _finish(self, groups: Sequence[RolloutGroup], begun: Sequence[Begun]) -> Scored:
        try:
            await asyncio.gather(*(asyncio.wrap_future(call.future) for call in begun))
            return self._scored(groups, begun)
        finally:
            _cancel(begun)

    def _scored(self, groups: Sequence[RolloutGroup], begun: Sequence[Begun]) -> Scored:
        """The groups with the events of all calls, which are done. An answer that one reward failed on has none."""
        events: dict[tuple[int, int], list[RewardEvent]] = {}
        usage = dict.fromkeys(self.names, Usage())
        texts: dict[str, str] = {}
        failed: set[tuple[int, int]] = set()
        logged: dict[tuple[int, int], dict[str, Any]] = {}
        for call in begun:
            name, settled = call.reward.name, call.future.result()
            usage[name] += settled.usage
            for index, (sample, found) in enumerate(zip(call.samples, settled.events, strict=True)):
                place = sample.group, sample.index
                logged.setdefault(place, {}).update(settled.extra.get(index, {}))
                if isinstance(found, Failure):
                    texts.setdefault(name, f"reward {name!r} {found.text}")
                    failed.add(place)
                else:
                    events.setdefault(place, []).extend(found)
        for place in failed:
            events[place] = []
        scored = []
        for number, group in enumerate(groups):
            places = [(number, index) for index in range(len(group.rollouts))]
            extra = tuple(logged.get(place, {}) for place in places)
            given = tuple(tuple(events.get(place, ())) for place in places)
            scored.append(ScoredGroup(group, given, logged=extra if any(extra) else ()))
        return Scored(scored, {name: one.failed for name, one in usage.items()}, texts, usage)


def _made_at_once(task: Callable[[None], Settled]) -> Future[Settled]:
    future: Future[Settled] = Future()
    try:
        future.set_result(task(None))
    except ReinlmError as error:
        future.set_exception(error)
    return future


@contextlib.contextmanager
def ended(begun: Sequence[Begun]) -> Iterator[None]:
    """A context in which all calls are done; it raises the error of one that failed, and ends the others."""
    futures = [call.future for call in begun]
    try:
        done = concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION).done
        for future in futures:
            if future in done and (error := future.exception()) is not None:
                raise error
        yield
    finally:
        _cancel(begun)


def _cancel(begun: Sequence[Begun]) -> None:
    """End what is not done: another call failed, or the caller was cancelled."""
    for call in begun:
        if call.reward.pool is not None and not call.future.done():
            call.reward.pool.cancel(call.future)


def close_pools(pools: Sequence[WorkerPool]) -> None:
    """Close them all."""
    for pool in pools:
        pool.close()


def columns_of(prompts: Sequence[Task]) -> tuple[str, ...]:
    """Every column that some prompt has, in order of appearance, except those named like another argument."""
    return tuple(dict.fromkeys(name for prompt in prompts for name in prompt.columns if name not in ALWAYS))
