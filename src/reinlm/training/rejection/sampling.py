"""Sampling of an iteration in parts, and second tries with a hint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from reinlm.data.columns import Template
from reinlm.data.rows import BadRow, Row
from reinlm.errors import InputError
from reinlm.records import Content, ScoredGroup, Task
from reinlm.rewards import RewardSet, TrainerState
from reinlm.rollouts import Engine, Episodes, EventLoop, Sampled, sample_groups
from reinlm.rollouts.engines import ready_to_sample
from reinlm.training.rejection.store import Part, SampleStore
from reinlm.training.rejection.stored import StoredAnswers

if TYPE_CHECKING:
    from reinlm.rewards.attempts import Usage
    from reinlm.training.setup import Phases


@dataclass
class Samples:
    """All answers of an iteration."""

    groups: list[ScoredGroup] = field(default_factory=list)
    """In the order of their prompts."""
    hinted: list[ScoredGroup] = field(default_factory=list)
    """Second tries; the content of their tasks holds the hint."""
    failures: int = 0
    messages: dict[str, str] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    read: int = 0
    """Parts that were read in place of being sampled."""


class PartSampler:
    """Samples the answers to many prompts in parts of whole groups.

    Args:
        batch_size: answers of a part.
        stored: answers that stand in place of sampled ones.
    """

    def __init__(
        self,
        episodes: Episodes,
        rewards: RewardSet | None,
        *,
        group_size: int,
        batch_size: int,
        loop: EventLoop,
        stored: StoredAnswers | None = None,
    ) -> None:
        self._stored = stored
        self.episodes = episodes
        self.rewards = rewards
        self._group_size = group_size
        self._groups = max(1, batch_size // group_size)
        self._loop = loop

    def collect(
        self,
        tasks: Sequence[Task],
        *,
        into: Samples,
        store: SampleStore,
        name: str,
        tag: str,
        state: TrainerState,
        version: int,
        phases: Phases,
        hinted: bool = False,
    ) -> None:
        """Add the answers to all tasks: those that the store holds are read, the others sampled and written.

        Args:
            name: of the parts in the store, without a number.
            tag: what the samples are for; with the seed it gives their noise.
        """
        place = {task.id: task for task in tasks}
        engine = cast("Engine", self.episodes.engine)
        for number, start in enumerate(range(0, len(tasks), self._groups), start=1):
            part = store.read(f"{name}_{number}")
            if part is None:
                with ready_to_sample(engine, version):
                    part = self._sample(tasks[start : start + self._groups], tag, state, phases)
                store.write(f"{name}_{number}", part)
            else:
                into.read += 1
                if self.rewards is not None:
                    self.rewards.load_state_dict(part.rewards)
            groups = [_of(group, place) for group in part.groups]
            (into.hinted if hinted else into.groups).extend(groups)
            into.failures += part.failures
            into.messages = {**part.messages, **into.messages}
            for reward, used in part.usage.items():
                into.usage[reward] = into.usage[reward] + used if reward in into.usage else used

    def _sample(self, tasks: Sequence[Task], tag: str, state: TrainerState, phases: Phases) -> Part:
        found = self._found(tasks, tag, state, phases)
        rewards = {} if self.rewards is None else self.rewards.state_dict()
        return Part(found.groups, sum(found.failures.values()), found.messages, found.usage, rewards)

    def _found(self, tasks: Sequence[Task], tag: str, state: TrainerState, phases: Phases) -> Sampled:
        if self._stored is not None:
            with phases("reward"):
                return self._stored.score(tasks, self.rewards, state)
        return sample_groups(
            self.episodes,
            tasks,
            group_size=self._group_size,
            tag=tag,
            rewards=self.rewards,
            state=state,
            loop=self._loop,
            phases=phases,
        )


def _of(group: ScoredGroup, tasks: Mapping[str, Task]) -> ScoredGroup:
    """The group with the run's own task, which holds what no file does."""
    task = tasks[group.group.task.id]
    rollouts = tuple(replace(rollout, task=task) for rollout in group.group.rollouts)
    return replace(group, group=replace(group.group, task=task, rollouts=rollouts))


def hinted_task(task: Task, hint: str) -> Task:
    """The task with a hint around its prompt; of a chat around its last message.

    STaR, arXiv 2203.14465 §3.3 (rationalization). Raises InputError where a column that the hint names is missing or no text.
    """
    content = task.content
    text = content if isinstance(content, str) else str(content[-1]["content"])
    row: dict[str, Any] = {**task.columns, "prompt": text}
    try:
        filled = Template(hint, "hint").fill(Row(task.id, row))
    except BadRow as error:
        raise InputError(f"hint: {error}", hint="name columns that every row has") from error
    hinted: Content = filled if isinstance(content, str) else (*content[:-1], {**content[-1], "content": filled})
    return replace(task, content=hinted)


def hinted_tasks(
    tasks: Sequence[Task], hint: str, tokens: Callable[[Task], int], room: int | None
) -> tuple[list[Task], int]:
    """The tasks with their hints, without those that no longer fit; and how many those are.

    Args:
        tokens: of the prompt of a task.
        room: tokens that a prompt may have; None: no limit.
    """
    made = [hinted_task(task, hint) for task in tasks]
    kept = [task for task in made if room is None or tokens(task) <= room]
    return kept, len(made) - len(kept)
