"""What was sampled for a step: its groups and how they were sampled, also as plain values for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from reinlm.records import RolloutGroup, ScoredGroup, Task
from reinlm.rewards.attempts import Usage
from reinlm.rollouts import Collected, Sampling
from reinlm.runs.schema import pack_groups, unpack_groups


@dataclass(frozen=True)
class SampledBatch:
    """The groups that a step trains on.

    Example:
        SampledBatch(collected, epochs=0.5, sampling=Sampling(max_new_tokens=256))
    """

    collected: Collected
    epochs: float
    """Passes over the data once it was sampled."""
    sampling: Sampling
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)
    """By phase, what it took beside the step before; empty where its own step sampled it."""

    def state_dict(self) -> dict[str, Any]:
        """Plain values, without the contents of tasks and without times."""
        found = self.collected
        kept = {id(group.group): group for group in found.kept}
        rows, columns = pack_groups([_on_task(kept.get(id(group.group), group), None) for group in found.sampled])
        return {
            "rows": rows,
            "columns": columns,
            "kept": [id(group.group) in kept for group in found.sampled],
            "failures": found.failures,
            "attempts": found.attempts,
            "nothing_left": found.nothing_left,
            "messages": dict(found.messages),
            "usage": {name: asdict(used) | {"seconds": 0.0} for name, used in found.usage.items()},
            "epochs": self.epochs,
            "sampling": asdict(self.sampling),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], tasks: Sequence[Task]) -> SampledBatch:
        """The batch of `state_dict`, on these tasks by their ids."""
        by_id = {task.id: task for task in tasks}
        groups = [
            _on_task(group, by_id[group.group.task.id]) for group in unpack_groups(state["rows"], state["columns"])
        ]
        collected = Collected(
            kept=tuple(group for group, kept in zip(groups, state["kept"], strict=True) if kept),
            sampled=tuple(replace(group, baseline=None) for group in groups),
            failures=state["failures"],
            attempts=state["attempts"],
            nothing_left=state["nothing_left"],
            messages=state["messages"],
            usage={name: Usage(**used) for name, used in state["usage"].items()},
        )
        return cls(collected, state["epochs"], Sampling(**state["sampling"]))


def _on_task(scored: ScoredGroup, task: Task | None) -> ScoredGroup:
    """The group with another task in place of its own; None: with its id alone."""
    group = scored.group
    task = task or Task(group.task.id, "")
    return replace(scored, group=RolloutGroup(task, tuple(replace(rollout, task=task) for rollout in group.rollouts)))
