"""Functions of one answer: a time limit for each, and what each logs; and what is wrong in what functions log or return."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rewards_support import make_group, values, write

from reinlm.errors import InputError, RunError
from reinlm.rewards import build_rewards

GROUP = make_group("a:1", ["x", "slow", "y", "z"])

SLOW = """
import time

def f(completion, log_metric):
    with open(__file__ + ".calls", "a") as file:
        file.write(completion[0])
    time.sleep(30 if completion == "slow" else 0.3)
    log_metric("scored", 1)
    return float(len(completion))
"""


def test_each_answer_of_a_function_of_one_answer_has_the_time_limit(tmp_path: Path) -> None:
    file = write(tmp_path, SLOW)
    calls = tmp_path / "mine.py.calls"
    with build_rewards(f"{file}:f", time_limit=1.0) as rewards:  # 4 answers take 1.2 s and more
        assert values(rewards.score([make_group("a:1", ["x", "y", "z", "w"])])) == [[1.0]] * 4
        with pytest.raises(RunError, match=r"overran its time limit of 1 s for a:1, answer 2 of 4"):
            rewards.score([GROUP])
    assert calls.read_text() == "xyzw" + "xs"
    calls.unlink()
    with build_rewards(f"{file}:f", time_limit=1.0, on_error="skip") as rewards:
        scored = rewards.score([GROUP])
    assert values(scored) == [[1.0], [], [1.0], [1.0]]
    assert scored.messages == {"f": "reward 'f' overran its time limit of 1 s for a:1, answer 2 of 4"}
    assert scored.usage["f"].metrics == {"scored": (3.0, 3)}
    assert calls.read_text() == "xsyz", "nothing is scored twice"
    calls.unlink()
    with build_rewards(f"{file}:f", time_limit=0.5, on_error="skip") as rewards:
        scored = rewards.score([make_group("a:1", ["x", *["slow"] * 6])])
    assert scored.failures == {"f": 6}
    assert calls.read_text() == "xss", "two in a row that overrun: the function is slow"


def test_an_overrun_in_this_process_names_the_answer() -> None:
    class Slow:
        def __call__(self, completion: str) -> float:
            time.sleep(1.0 if completion == "slow" else 0.15)
            return 1.0

    with build_rewards(Slow(), time_limit=0.4) as rewards:
        assert values(rewards.score([make_group("a:1", ["x"] * 4)])) == [[1.0]] * 4
        with pytest.raises(RunError, match="in this process, where it cannot be stopped, for a:1, answer 2 of 4"):
            rewards.score([GROUP])


def test_what_functions_of_one_answer_log_belongs_to_their_answers() -> None:
    async def later(completion: str, log_extra: Any, log_metric: Any) -> float:
        await asyncio.sleep(0.05 if completion == "x" else 0)
        log_metric("n", len(completion))
        if completion != "y":
            log_extra("text", [completion])
        return 1.0

    def now(completion: str, log_extra: Any) -> float:
        log_extra("length", [len(completion)])
        return 1.0

    for limit in (None, 10):
        with build_rewards([later, now], time_limit=limit) as rewards:
            scored = rewards.score([GROUP])
        assert scored.groups[0].logged == (
            {"text": "x", "length": 1},
            {"text": "slow", "length": 4},
            {"text": None, "length": 1},
            {"text": "z", "length": 1},
        )
        assert scored.usage["later"].metrics == {"n": (7.0, 4)}


def logs_too_few(completions: list[str], log_extra: Any) -> list[float]:
    log_extra("x", [1])
    return [0.0] * len(completions)


def logs_a_number(completions: list[str], log_extra: Any) -> list[float]:
    log_extra("x", 5)
    return [0.0] * len(completions)


def logs_text(completions: list[str], log_metric: Any) -> list[float]:
    log_metric("x", "hello")
    return [0.0] * len(completions)


def logs_two(completion: str, log_extra: Any) -> float:
    log_extra("x", [1, 2])
    return 0.0


def an_array(completions: list[str]) -> Any:
    return np.zeros((len(completions), 1))


def a_tensor(completions: list[str]) -> Any:
    return torch.zeros(len(completions), 1)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (logs_too_few, "logged 1 values in the column 'x' for 4 samples in a call with 4 answers, from a:1, answer 1"),
        (logs_a_number, r"raised TypeError: log_extra\('x', 5\) takes a list"),
        (logs_two, "logged 2 values in the column 'x' for 1 sample for a:1, answer 1 of 4"),
        (logs_text, r"raised TypeError: log_metric\('x', 'hello'\): the value must be a number"),
        (an_array, r"returned an array of shape \(4, 1\) instead of a list of 4 values"),
        (a_tensor, r"returned an array of shape \(4, 1\) instead of a list of 4 values"),
    ],
)
def test_what_is_wrong_with_logged_values_and_arrays_is_named(function: Any, message: str) -> None:
    limit = 20 if function is logs_too_few else None
    with build_rewards(function, time_limit=limit) as rewards, pytest.raises(RunError, match=f"'.*' {message}"):
        rewards.score([GROUP])


def test_the_hint_of_an_unknown_name_lists_what_can_be_a_reward_of_that_file(tmp_path: Path) -> None:
    body = (
        "from dataclasses import dataclass\nfrom functools import partial\nfrom os.path import join\nimport pathlib\n"
        "def cols(completions): ...\ndef _private(completions): ...\nclass Plain: ...\nplain = Plain()\n"
        "class Near:\n    def __call__(self, completions): ...\nnear = Near()\nhalf = partial(cols)\nLIMIT = 3\n"
    )
    with pytest.raises(InputError, match="no function 'zzz'") as caught:
        build_rewards(f"{write(tmp_path, body)}:zzz")
    assert (caught.value.hint or "").endswith("functions there: Near, cols, half, near")


def test_a_path_without_py_is_told_to_end_in_py(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "rew").mkdir()
    write(tmp_path, "def cols(completions): ...", "rew/rewards.py")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="cannot be imported") as caught:
        build_rewards("rew/rewards:cols")
    assert caught.value.hint == "write rew/rewards.py:cols"
