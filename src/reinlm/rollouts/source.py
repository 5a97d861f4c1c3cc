"""`Source`: samples, scores and filters groups until a step has enough of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from reinlm.data.order import RowOrder
from reinlm.records import ScoredGroup, Task
from reinlm.rollouts.event_loop import EventLoop
from reinlm.rollouts.groups import Episodes, Phases, Rewards, Sampled, sample_groups
from reinlm.rollouts.unrewarded import check_rewarded, environment_errors, unrewarded

if TYPE_CHECKING:
    from reinlm.rewards import TrainerState
    from reinlm.rewards.attempts import Usage


@dataclass(frozen=True)
class Collected:
    """The groups of one step."""

    kept: tuple[ScoredGroup, ...]
    """In the order in which they were begun."""
    sampled: tuple[ScoredGroup, ...]
    """All groups, those that filters dropped included."""
    failures: int
    """Answers that a reward function failed on."""
    attempts: int
    """Rounds of sampling."""
    nothing_left: str | None = None
    """Why nothing was kept."""
    messages: Mapping[str, str] = field(default_factory=dict)
    """By reward that failed on an answer: what went wrong first."""
    usage: Mapping[str, Usage] = field(default_factory=dict)
    """By reward: what its calls cost, and what it logged."""

    @property
    def unrewarded(self) -> dict[str, int]:
        """Episodes without a reward, by reason; see `reinlm.rollouts.unrewarded`."""
        return unrewarded(self.sampled)

    @property
    def failure(self) -> str | None:
        """What ended the first episode that an environment's error ended."""
        return next(iter(environment_errors(self.sampled)), None)

    @property
    def failed(self) -> int:
        """Episodes that an environment's error ended."""
        return len(environment_errors(self.sampled))

    @property
    def what_failed(self) -> dict[str, str]:
        """By reward function that failed, and `environment`: in words, what went wrong first."""
        found = {f"reward {name}": text for name, text in self.messages.items()}
        if self.failure is not None:
            found["environment"] = f"{self.failed} episodes ended by an error, the first: {self.failure}"
        return found


class Source:
    """Takes tasks in their order and yields finished, scored groups; nothing is in flight between two calls.

    A batch is filled in the order in which its groups were begun. What filters drop is sampled anew, from the tasks that
    come next, until `max_attempts` times as many groups were begun as a step wants. Sample k of a task is the request
    `STEP/ROUND/WAVE/TASK/k`; a task that comes twice in a round is sampled in its second wave.

    Args:
        episodes: engine, renderer, sampling and environment.
        order: which task comes next; its cursor is what a checkpoint holds of a source.
        rewards: None where the environment gives rewards of its own.
        groups: how many a step wants.
        filters: a group that one of them refuses is dropped.
        greedy_baseline: every kept group gets the return of the policy's greedy answer to its task.
        needs_rewards: a step in which no episode has a reward is an error.
        max_failed_steps: the step in a row that is one where reward functions failed; the steps before keep nothing.
        name: who filters, for messages.

    Example:
        source = Source(episodes, tasks, RowOrder(len(tasks), seed=0), rewards, groups=16, group_size=8)
        collected = source.collect(1, TrainerState(), phases)
    """

    def __init__(
        self,
        episodes: Episodes,
        tasks: Sequence[Task],
        order: RowOrder,
        rewards: Rewards | None,
        *,
        groups: int,
        group_size: int,
        max_attempts: int = 1,
        filters: Sequence[Callable[[ScoredGroup], bool]] = (),
        greedy_baseline: bool = False,
        needs_rewards: bool = True,
        max_failed_steps: int = 1,
        name: str = "the algorithm",
    ) -> None:
        self.episodes = episodes
        self.tasks = tasks
        self.order = order
        self.rewards = rewards
        self.loop = EventLoop()
        """Where its coroutines run; evaluation may use it too."""
        self._groups = groups
        self._group_size = group_size
        self._max_attempts = max_attempts
        self._filters = tuple(filters)
        self._greedy_baseline = greedy_baseline
        self._needs_rewards = needs_rewards
        self._max_failed_steps = max_failed_steps
        self._failed_steps = 0
        """Steps in a row up to now in which no episode had a reward, as functions failed."""
        self._name = name

    def collect(
        self, step: int, state: TrainerState | None = None, phases: Phases = contextlib.nullcontext
    ) -> Collected:
        """The groups of one step. Raises RunError where no episode has a reward, and what `sample_groups` raises."""
        kept: list[ScoredGroup] = []
        sampled: list[ScoredGroup] = []
        messages: dict[str, str] = {}
        usage: dict[str, Usage] = {}
        failures = attempts = 0
        while (missing := self._groups - len(kept)) and len(sampled) < self._max_attempts * self._groups:
            left = self._max_attempts * self._groups - len(sampled)
            tasks = [self.tasks[index] for index in self.order.take(min(missing, left))]
            for number, wave in enumerate(_waves(tasks)):
                tag = f"{step}/{attempts}/{number}"
                found = self._sample(wave, self._group_size, tag, state, phases)
                failures += sum(found.failures.values())
                messages = {**found.messages, **messages}
                usage |= {name: usage[name] + used if name in usage else used for name, used in found.usage.items()}
                sampled += found.groups
                passed = [group for group in found.groups if all(keep(group) for keep in self._filters)]
                kept += self._with_baselines(passed, tag, state, phases) if self._greedy_baseline else passed
            attempts += 1
            if not self._filters:
                break
        if self._needs_rewards and self._all_failed(step, sampled, messages):
            return Collected((), tuple(sampled), failures, attempts, None, messages, usage)
        nothing = None
        if not kept:
            nothing = f"{self._name} kept none of {len(sampled)} groups in {attempts} rounds: nothing to learn from"
        return Collected(tuple(kept), tuple(sampled), failures, attempts, nothing, messages, usage)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds: the cursor of the order, as plain numbers."""
        return {"order": self.order.state_dict(), "failed_steps": self._failed_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken. Raises InputError where the number of tasks is another one now."""
        self.order.load_state_dict(state["order"])
        self._failed_steps = int(state.get("failed_steps", 0))

    def _all_failed(self, step: int, sampled: Sequence[ScoredGroup], messages: Mapping[str, str]) -> bool:
        """Whether no episode has a reward, in fewer steps in a row than are an error; raises RunError from then on."""
        rewarded = any(earned is not None for group in sampled for earned in group.returns)
        self._failed_steps = 0 if rewarded or not messages else self._failed_steps + 1
        if 0 < self._failed_steps < self._max_failed_steps:
            return True
        where = f"step {step}" + (f", after {self._failed_steps - 1} like it" if self._failed_steps > 1 else "")
        check_rewarded(where, sampled, messages, functions=self.rewards is not None)
        return False

    def _sample(
        self,
        tasks: Sequence[Task],
        group_size: int,
        tag: str,
        state: TrainerState | None,
        phases: Phases,
        episodes: Episodes | None = None,
    ) -> Sampled:
        return sample_groups(
            episodes or self.episodes,
            tasks,
            group_size=group_size,
            tag=tag,
            rewards=self.rewards,
            state=state,
            loop=self.loop,
            phases=phases,
        )

    def _with_baselines(
        self, groups: Sequence[ScoredGroup], tag: str, state: TrainerState | None, phases: Phases
    ) -> list[ScoredGroup]:
        """The groups with the return of the policy's greedy answer to each task."""
        if not groups:
            return []
        greedy = replace(self.episodes, sampling=replace(self.episodes.sampling, temperature=0.0))
        tasks = [group.group.task for group in groups]
        found = self._sample(tasks, 1, f"{tag}/greedy", state, phases, greedy)
        return [replace(group, baseline=one.returns[0]) for group, one in zip(groups, found.groups, strict=True)]


def _waves(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """The tasks in waves in each of which a task stands once: a small data set may repeat within one batch."""
    rest = list(tasks)
    while rest:
        wave: dict[str, Task] = {}
        later = []
        for task in rest:
            if task.id in wave:
                later.append(task)
            else:
                wave[task.id] = task
        yield list(wave.values())
        rest = later
