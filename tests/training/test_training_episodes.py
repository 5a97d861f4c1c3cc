"""Environments, engines and limits in every verb that samples: eval, generate and evaluation in sft, as in rl."""

from __future__ import annotations

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
            "evaluation": {"max_new_tokens": 8},
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
