"""Environments, engines and limits in every verb that samples: eval, generate and evaluation in sft, as in rl."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from training_helpers import EXAMPLES, ROWS, pair, run_sft, tiny_policy

import reinlm
from reinlm.environments import Action, StepResult
from reinlm.parts import PARTS
from reinlm.records import Task
from reinlm.runs import read_metrics

MINE = """
from reinlm.config import Config
from reinlm.environments import StepResult
from reinlm.parts import part
from reinlm.rollouts.engines import InProcessConfig

made = []

@part("engine", "noted_engine")
class Noted(InProcessConfig):
    def build(self, policy, *, autocast=None, max_running=256):
        made.append(max_running)
        return super().build(policy, autocast=autocast, max_running=max_running)

@part("environment", "digits")
class DigitsConfig(Config):
    turns: int = 2

    def build(self):
        return Digits(self.turns)

class Digits:
    name = "digits"

    def __init__(self, turns):
        self.left = turns

    def reset(self, task):
        self.answer = task.columns["answer"]

    def step(self, action):
        self.left -= 1
        return StepResult("1+", reward=float(len(action.token_ids)), terminated=not self.left)
"""
STOPS = list("0123456789")
"""An answer of one digit ends a turn."""


@pytest.fixture
def mine(tmp_path: Path) -> Any:
    (tmp_path / "mine.py").write_text(MINE)
    yield str(tmp_path / "mine.py")
    PARTS["engine"].pop("noted_engine", None)
    PARTS["environment"].pop("digits", None)


def engines_made() -> list[int]:
    """`max_running` of every engine that the file made."""
    import sys

    found: list[int] = sys.modules[PARTS["engine"]["noted_engine"].__module__].made
    return found


def test_eval_plays_the_environment_with_the_engine_of_the_recipe(mine: str) -> None:
    def score(**changes: Any) -> dict[str, float]:
        rollout = {"engine": "noted_engine", "max_running": 3, "stop_strings": STOPS, **changes.pop("rollout", {})}
        given = {
            "imports": mine,
            "environment": "digits",
            "rollout": rollout,
            "evaluation": {"max_new_tokens": 8, "correct_above": 0.5},
        } | changes
        return reinlm.evaluate(pair(tiny_policy()), ROWS, **given).metrics

    found = score()
    assert engines_made() == [3]
    assert set(found) >= {"rewards/digits", "accuracy"}
    cut = score(rollout={"max_turns": 1})
    assert cut["clipped_ratio"] == 1.0  # the limit of turns is in force: nothing comes to its second turn
    assert found["clipped_ratio"] < 1.0
    both = score(reward={"functions": "exact_match", "time_limit": None})
    assert both["rewards/digits"] == found["rewards/digits"]
    assert "rewards/exact_match" in both


def test_generate_plays_the_environment_with_the_columns_of_its_rows(mine: str) -> None:
    given: dict[str, Any] = {"imports": mine, "environment": {"digits": {"turns": 3}}}
    given |= {"rollout": {"engine": "noted_engine"}, "sampling": {"max_new_tokens": 8, "stop_strings": STOPS}}
    (found,) = reinlm.generate(pair(tiny_policy()), {"prompt": "1+2=", "answer": "3"}, **given)
    assert engines_made() == [256]
    assert found.ends == ("environment",)
    assert found.completions[0].count("1+") >= 2  # what the environment wrote between the three turns


def test_sft_evaluates_by_the_environments_own_rewards(mine: str, tmp_path: Path) -> None:
    result = run_sft(
        tmp_path / "run",
        data=EXAMPLES,
        imports=mine,
        environment="digits",
        rollout={"engine": "noted_engine", "stop_strings": STOPS},
        evaluation={"data": {"games": ROWS}, "max_new_tokens": 12},
        training={"steps": 1},
    )
    assert engines_made() == [256]
    found = read_metrics(result.folder / "metrics.jsonl")[-1]
    assert found["eval/games/rewards/digits"] > 0
    assert "eval/games/loss" not in found
    assert result.summary["after"]["games/accuracy"] > 0


@pytest.mark.parametrize("prompts", [5, None])
def test_prompts_that_are_none_are_refused(prompts: Any) -> None:
    with pytest.raises(reinlm.InputError, match="prompts"):
        reinlm.generate(pair(tiny_policy()), prompts)


def test_eval_without_any_reward_is_refused_before_a_model_is_loaded() -> None:
    with pytest.raises(reinlm.InputError, match="'reward' is required"):
        reinlm.evaluate("no/such/model", ROWS)


class Graded:
    """Rewards its only turn under the name `graded`."""

    name = "graded"

    def reset(self, task: Task) -> None: ...

    def step(self, action: Action) -> StepResult:
        return StepResult(reward=1.0, terminated=True)


def graded(completions: list[str], **_: Any) -> list[float]:
    return [0.5] * len(completions)


def test_an_environments_reward_and_a_function_of_one_name_are_refused() -> None:
    model = pair(tiny_policy())
    settings: dict[str, Any] = {
        "environment": Graded,
        "rollout": {"stop_strings": STOPS},
        "evaluation": {"max_new_tokens": 4},
    }
    with pytest.raises(reinlm.InputError, match=r"environment's reward 'graded' .* reward function 'graded'") as caught:
        reinlm.evaluate(model, ROWS, reward={"functions": graded, "time_limit": None}, **settings)
    assert "give the function a label" in str(caught.value.hint)
    named = {"functions": {"name": graded, "label": "judge"}, "time_limit": None}
    found = reinlm.evaluate(model, ROWS, reward=named, **settings).metrics
    assert (found["rewards/graded"], found["rewards/judge"]) == (1.0, 0.5)


class Second:
    """Rewards its second turn, where it ends; the tasks in `raises` raise, and `nothing` gives no reward at all."""

    raises: tuple[str, ...] = ()
    nothing = False

    def reset(self, task: Task) -> None:
        self.turn = 0
        if task.id in self.raises:
            raise ValueError("no board")

    def step(self, action: Action) -> StepResult:
        self.turn += 1
        if self.turn == 1:
            return StepResult("+")
        return StepResult(reward=None if self.nothing else 1.0, terminated=True)


def play(reward: Any = None, *, rows: int = 4, output: Path | None = None, **attributes: Any) -> Any:
    rollout = {"stop_strings": STOPS, "on_environment_error": "skip", "max_turns": attributes.pop("max_turns", None)}
    kind = type("Second", (Second,), attributes)
    settings: dict[str, Any] = {"environment": kind, "rollout": rollout, "evaluation": {"max_new_tokens": 2}}
    reward = None if reward is None else {"functions": reward, "time_limit": None}
    return reinlm.evaluate(pair(tiny_policy()), ROWS[:rows], reward=reward, output=output, **settings)


def none(completions: list[str], **_: Any) -> list[None]:
    return [None] * len(completions)


def test_an_episode_cut_off_before_the_environments_reward_is_not_right_and_one_that_failed_is_in_no_figure() -> None:
    whole = play(rows=24)
    ends = [group.group.rollouts[0] for group in whole.groups]
    finished = sum(end.terminated for end in ends)
    assert 0 < finished < 24
    assert whole.metrics["unrewarded"] == 24 - finished
    assert whole.metrics["accuracy"] == finished / 24
    assert "environment_errors" not in whole.metrics
    assert whole.notes == (
        f"no reward for some episodes (truncated by length {24 - finished}): raise evaluation.max_new_tokens; "
        "or add a reward function, which scores truncated episodes too",
    )
    failing = (
        next(i for i, end in enumerate(ends) if end.terminated),
        next(i for i, end in enumerate(ends) if end.truncated),
    )
    part = play(rows=24, raises=tuple(ends[i].task.id for i in failing))
    left = [end for i, end in enumerate(ends) if i not in failing]
    assert part.metrics["environment_errors"] == 2
    assert part.metrics["accuracy"] == (finished - 1) / 22
    assert part.metrics["clipped_ratio"] == sum(end.truncated for end in left) / 22
    assert part.metrics["mean_length"] == sum(end.length for end in left) / 22
    assert part.notes[0].startswith("2 episodes ended by an error, the first: environment Second, task")
    assert [verdict for (verdict,) in part.correct].count(None) == 2
    scored = play(lambda completions, **_: [1.0 if len(text) == 1 else None for text in completions], rows=24)
    assert scored.metrics["accuracy"] == 1.0  # None of a reward function is no verdict


@pytest.mark.parametrize(
    ("how", "complaint", "hint"),
    [
        ({"raises": tuple(f"data[{i}]" for i in range(4))}, "ended by an error 4; first error: environ", "correct"),
        ({"max_turns": 1}, "none of 4 episodes has a reward: truncated by .*", "raise rollout.max_turns"),
        ({"nothing": True}, "finished without one [1-4]", "have the environment give a number"),
        (
            {"reward": none, "nothing": True},
            "none of 4 episodes has a reward",
            "have the reward functions give a number",
        ),
    ],
)
def test_eval_stops_where_no_episode_has_a_reward_and_keeps_the_answers(
    how: dict[str, Any], complaint: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(reinlm.RunError, match="evaluation: none of 4 episodes has a reward") as caught:
        play(output=tmp_path / "answers.jsonl", **how)
    assert re.search(complaint, str(caught.value))
    assert hint in str(caught.value.hint)
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 4


def test_generate_marks_the_episodes_that_failed() -> None:
    kind = type("Second", (Second,), {"raises": ("prompts[1]", "data[1]")})
    settings: dict[str, Any] = {"environment": kind, "sampling": {"max_new_tokens": 4, "stop_strings": STOPS}}
    found = reinlm.generate(pair(tiny_policy()), ["1+1=", "2+2="], rollout={"on_environment_error": "skip"}, **settings)
    assert [answers.failed for answers in found] == [(False,), (True,)]
    assert "reset raised ValueError: no board" in found[1].ends[0]
