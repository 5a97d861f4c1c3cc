"""Replayed groups: how old they may be is told from the versions of their tokens."""

from __future__ import annotations

import numpy as np

from reinlm.records import RewardEvent, Rollout, RolloutGroup, ScoredGroup, Segment, Task
from reinlm.training.replay import Replay, ReplayConfig


def group(name: str, *versions: int) -> ScoredGroup:
    """A group with one answer of one token for each version."""
    task = Task(name, "2+2=")
    rollouts = [
        Rollout(
            task, (Segment(np.array([1, 2]), np.array([-1, 0]), {"version": np.array([v])}),), "4", True, False, "stop"
        )
        for v in versions
    ]
    return ScoredGroup(RolloutGroup(task, tuple(rollouts)), tuple((RewardEvent("r", 1.0),) for _ in rollouts))


def drawn(replay: Replay, version: int) -> set[str]:
    return {group.group.task.id for group in replay.draw(step=9, version=version)}


def test_a_group_is_too_old_by_the_version_of_its_oldest_token() -> None:
    replay = Replay(ReplayConfig(groups=9, age=2), seed=0, updates=3)
    replay.add([group("old", 4), group("mixed", 10, 3), group("new", 10)])
    assert drawn(replay, version=9) == {"old", "mixed", "new"}  # two steps of three updates before 9: version 3
    assert drawn(replay, version=10) == {"old", "new"}
    assert drawn(replay, version=10) == {"old", "new"}  # steps without an update age nothing
    assert drawn(replay, version=11) == {"new"}


def test_a_checkpoint_of_replay_gives_the_same_draws_with_the_steps_of_earlier_versions_too() -> None:
    replay, again = (Replay(ReplayConfig(groups=2, age=2), seed=0, updates=1) for _ in range(2))
    replay.add([group("a", 4), group("b", 5), group("c", 6)])
    again.load_state_dict(replay.state_dict() | {"steps": [5, 6, 7]})
    assert again.draw(9, 6) == replay.draw(9, 6)
