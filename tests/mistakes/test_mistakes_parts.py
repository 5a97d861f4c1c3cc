"""Natural mistakes in parts of a user's own, given as objects or by place: each gets one line that says what to write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from mistake_checks import refused_by_rl

import reinlm
from reinlm.cli import main
from tiny_runs import graded, run_rl

MINE = """
import torch

WIDTH = 0.2

def soft_clip(ratio, advantages):
    return -torch.tanh(ratio - 1) * advantages

def scored(completions, answer):
    return [float(a == b) for a, b in zip(completions, answer)]

class Near:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, completions):
        return [0.0 for _ in completions]

class Game:
    def __init__(self, tries):
        self.tries = tries

    def reset(self, task):
        return None

    def step(self, action):
        return None
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "broken.py").write_text("import torch\nfrom math import sine\n", encoding="utf-8")


@dataclass(frozen=True)
class Squash:
    scale: float = 1.0

    def __call__(self, log_ratio: Any, logprobs: Any, signals: Any) -> Any: ...


class NotAnAdvantage:
    pass


def no_arguments() -> float:
    return 0.0


GATES: list[tuple[Any, str, str]] = [
    (
        lambda r, advantages: -r * advantages,
        "has an argument 'r', and there are ratio, advantages",
        "f(ratio, advantages)",
    ),
    (lambda ratio, advantage: -ratio * advantage, "has an argument 'advantage'", "did you mean 'advantages'?"),
    (
        lambda ratio, advantages: ratio * advantages,
        "loss rises with the ratio where the advantage is positive",
        "-ratio",
    ),
    (lambda ratio, advantages: (-ratio * advantages).mean(), "of shape [] for 7 tokens", "[7], a value of each token"),
    (lambda ratio, advantages: (-ratio * advantages).tolist(), "returned list, not a tensor", "a value of each token"),
    (lambda ratio, advantages: None, "returned NoneType, not a tensor", "a value of each token"),
    (lambda ratio, advantages: -(1 - ratio).sqrt() * advantages, "returned nan for", ""),
    (lambda ratio, advantages: -ratio.detach() * advantages, "has no gradient to the policy", "ratio or logprobs"),
    (
        lambda ratio, advantages: -ratio * (advantages - advantages.mean()),
        "depends on the other sequences",
        "micro-batch",
    ),
    (lambda ratio, advantages: -ratio * advantages / 0 / None, "failed: TypeError", ""),
    (no_arguments, "gate no_arguments takes no argument", "f(ratio, advantages)"),
    (Squash, "gate: Squash is a class", "give an instance of it: Squash(…)"),
    ("mine.py:soft_clp", "mine.py has no 'soft_clp'", "did you mean 'soft_clip'?"),
    ("mine.py:WIDTH", "is of type float", "name a function or a dataclass"),
    ("mien.py:soft_clip", "no such file: mien.py", "looked for"),
    ("mine.py:", "cannot be read", "write file.py:NAME"),
    ("broken.py:f", "broken.py raises ImportError: cannot import name 'sine'", ""),
    ("no_such_module:f", "cannot import no_such_module", "a file.py or a module"),
    ({"mine.py:soft_clip": {"width": 0.3}}, "mine.py:soft_clip takes no values", "write mine.py:soft_clip alone"),
    ({"mine.py:soft_clip": {"width": 0.3}}, "takes no values", "a dataclass with __call__ takes values"),
    ("mine.py", "unknown gate 'mine.py'", "write mine.py:FUNCTION; there: soft_clip"),
    ("broken.py", "unknown gate 'broken.py'", "write broken.py:FUNCTION"),
]
ADVANTAGES: list[tuple[Any, str, str]] = [
    (lambda reward: reward, "has an argument 'reward'", "did you mean 'rewards'?"),
    (lambda rewards: rewards.mean(), "of shape [] for 4 episodes", "a value of each episode"),
    (lambda rewards, layout: rewards, "of shape [4] for 7 tokens", "one that takes `layout` or `feedback`"),
    (lambda rewards: rewards > 0.5, "bool of shape [4]", "floating-point"),
    (lambda rewards: rewards.log() * 0.0, "returned nan for 1 of 4 episodes", "torch.nanmean"),
    (lambda rewards, group: [0.0] * 4, "returned list, not a tensor", ""),
    (NotAnAdvantage(), "advantage: cannot read", ""),
    (torch.nanmean, "advantage nanmean has no readable signature", "f(rewards, group, groups)"),
]
OTHERS: list[tuple[dict[str, Any], str, str]] = [
    ({"algorithm": {"ratio": lambda logprobs, signals: logprobs}}, "does not say what it is against", ""),
    ({"optimizer": {"schedule": lambda done: 1 - done}}, "is in no file, where config.yaml could name it", "@reinlm.schedules"),
    ({"optimizer": {"schedule": "mine.py:soft_clip"}}, "'mine.py:soft_clip' fails at 0", ""),
    ({"environment": "mine.py:Game"}, "missing a required argument: 'tries'", "{file.py:CLASS: {key: value}}"),
    ({"environment": {"mine.py:Game": {"trys": 3}}}, "missing a required argument: 'tries'", "{file.py:CLASS"),
    ({"environment": {"mine.py:Game": 3}}, "3 is no mapping of values", "{mine.py:Game: {key: value}}"),
    ({"rollout": {"engine": "mine.py:Game"}}, "Game is no configuration class", "derive from reinlm.config.Config"),
    ({"reward": {"functions": "exact_match", "on_error": "skip"}}, "reward.on_error", "on_error is reward.on_reward_error"),
    ({"algorithm": {"updates": 4}}, "updates: cannot read 4", "{passes: 1, minibatches: 4}"),
    ({"algorithm": {"updates": {"pases": 4}}}, "unknown value of updates 'pases'", "did you mean 'passes'?"),
]  # fmt: skip
EVERY = [
    *(({"algorithm": {"gate": given}}, message, hint) for given, message, hint in GATES),
    *(({"algorithm": {"advantage": given}}, message, hint) for given, message, hint in ADVANTAGES),
    *OTHERS,
]


@pytest.mark.parametrize(("given", "message", "hint"), EVERY, ids=[str(number) for number in range(len(EVERY))])
def test_a_mistake_in_a_part_is_one_line_before_a_model_is_loaded(
    given: dict[str, Any], message: str, hint: str
) -> None:
    refused_by_rl(given, message, hint)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("mine.py:Near", "missing a required argument: 'scale'"),
        ({"mine.py:Near": {"scal": 1}}, "missing a required argument: 'scale'"),
        ({"mine.py:scored": {"wieght": 0.5}}, "unknown key 'wieght'"),
        ({"mine.py:Game": {"tries": 1}}, "has no method `__call__`"),
    ],
)
def test_a_mistake_in_a_class_of_rewards_is_told_where_it_is_loaded(reward: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(reinlm.InputError, match=message):
        run_rl(tmp_path / "run", reward=reward)


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Right when it is tried before the run, wrong within it."""
    calls: list[int] = []

    def advantage(rewards: Any) -> Any:
        calls.append(1)
        return rewards if len(calls) == 1 else function(rewards)

    return advantage


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda rewards: rewards[1:], "advantage advantage returned float64 of shape"),
        (lambda rewards: rewards * torch.nan, "advantage advantage returned nan for 8 of 8 episodes"),
        (lambda rewards: 1 / 0, "advantage advantage failed: ZeroDivisionError"),
    ],
)
def test_a_function_that_is_wrong_in_the_run_ends_it_with_its_name(function: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(reinlm.InputError, match=message):
        run_rl(tmp_path / "run", reward=graded, algorithm={"advantage": once(function)})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["algorithm.gate=mine.py:soft_clp"], "did you mean 'soft_clip'?"),
        (["algorithm.advantage=mine.py:soft_clip"], "has an argument 'ratio', and there are rewards"),
        (["reward.on_error=skip"], "on_error is reward.on_reward_error"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["rl", "--explain", "-m", "no/such", "-d", "none.jsonl", "-r", "exact_match", *words])
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("error: ", "hint: "))]
    assert ended.value.code == 2
    assert message in " ".join(told)


def test_what_gave_each_evaluation_set_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.yaml").write_text("evaluation: {data: {test: a.jsonl}}\n", encoding="utf-8")
    words = ["-m", "no/such", "-d", "none.jsonl", "-r", "exact_match", "--eval-data", "b.jsonl"]
    with pytest.raises(SystemExit):
        main(["rl", "r.yaml", "--explain", *words])
    said = capsys.readouterr().out
    assert "# evaluation on 2 sets, each by its name: test (recipe r.yaml), eval (--eval-data)" in said
