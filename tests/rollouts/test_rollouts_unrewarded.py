"""Episodes without a reward: counted by reason, told once with what to change, and named where all are such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reinlm.environments import Action, StepResult
from reinlm.errors import RunError
from reinlm.records import RewardEvent, Rollout, RolloutGroup, ScoredGroup, Task
from reinlm.rollouts.unrewarded import in_words, remedy, unrewarded
from tiny_runs import metrics, trainer

TASK = Task("data[0]", "go")
ENDS = {
    "length": (False, True, "length"),
    "context": (False, True, "context"),
    "turns": (False, True, "turns"),
    "time": (False, True, "time"),
    "error": (False, False, "environment Maze, task data[0]: step raised KeyError"),
    "environment": (False, True, "out of moves"),
    "finished": (True, False, "stop"),
}


def group(*reasons: str, rewarded: int = 0) -> ScoredGroup:
    """An episode for each reason; the last `rewarded` of them earned 0, which is a reward."""
    rollouts = tuple(Rollout(TASK, (), "", *ENDS[reason]) for reason in reasons)
    without = len(rollouts) - rewarded
    return ScoredGroup(RolloutGroup(TASK, rollouts), ((),) * without + ((RewardEvent("maze", 0.0),),) * rewarded)


def test_episodes_without_a_reward_are_counted_by_reason() -> None:
    assert unrewarded([group(*ENDS), group("turns", "length", "turns", rewarded=1)]) == {
        "length": 2,
        "context": 1,
        "turns": 2,
        "time": 1,
        "error": 1,
        "environment": 1,
        "finished": 1,
    }
    assert unrewarded([group("length", "finished", rewarded=2)]) == {}


def test_each_reason_is_told_with_what_to_change() -> None:
    counts = unrewarded([group("length", "length", "turns", "error")])
    assert in_words(counts) == "truncated by length 2, truncated by turns 1, ended by an error 1"
    assert remedy(counts) == (
        "raise rollout.max_new_tokens; raise rollout.max_turns; correct the environment; "
        "or add a reward function, which scores truncated episodes too"
    )
    assert remedy(unrewarded([group("finished")])) == "have the environment give a number, not None"
    assert remedy(counts, functions=True) == (
        "correct the environment; have the reward functions give a number, not None"
    )


class LastPays:
    """Rewards the second turn alone, where the episode ends; some episodes raise, so that they can be skipped."""

    raises = 0
    made = 0

    def __init__(self) -> None:
        self.turn = 0
        type(self).made += 1
        self.number = type(self).made

    def reset(self, task: Task) -> None:
        if self.number <= self.raises:
            raise ValueError("no board")

    def step(self, action: Action) -> StepResult:
        self.turn += 1
        return StepResult(reward=1.0, terminated=True) if self.turn == 2 else StepResult("+")


def play(folder: Path, raises: int = 0, **rollout: Any) -> None:
    kind = type("LastPays", (LastPays,), {"raises": raises, "made": 0})
    stops = {"stop_strings": list("0123456789"), "on_environment_error": "skip"}
    changes: dict[str, Any] = {"algorithm": "reinforce", "training": {"steps": 2}, "rollout": {**stops, **rollout}}
    trainer(folder, reward=None, environment=kind, quiet=False, **changes).train()


def test_a_run_counts_such_episodes_and_says_the_reasons_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(tmp_path / "run", raises=1, max_new_tokens=2)
    first, second = metrics(tmp_path / "run")
    cut = first["episodes/unrewarded/length"]
    assert first["episodes/unrewarded/error"] == first["episodes/failed"] == 1.0
    assert 0 < cut < 7
    assert first["episodes/unrewarded"] == cut + 1.0
    assert "episodes/unrewarded" not in second
    said = capsys.readouterr().err
    expected = (
        f"no reward for some episodes (truncated by length {cut:.0f}, ended by an error 1): raise rollout.max_new"
    )
    assert said.count("no reward for some episodes") == said.count(expected) == 1
    assert said.count("1 episodes ended by an error, the first: environment LastPays, task") == 1
    assert "reset raised ValueError: no board" in said


def test_a_step_in_which_no_episode_has_a_reward_names_the_reasons_and_what_to_change(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"step 1: none of 8 episodes has a reward: truncated by .*turns \d") as caught:
        play(tmp_path / "run", max_turns=1)
    assert "raise rollout.max_turns" in str(caught.value.hint)
    with pytest.raises(RunError, match=r"none of 8 episodes has a reward: .*ended by an error.*first error: environ"):
        play(tmp_path / "failed", raises=8)
