"""Functions that no process can import are copied to a worker, unless they belong to this process."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
from rewards_support import make_group, values

from reinlm.errors import RunError
from reinlm.rewards import build_rewards
from reinlm.rewards.copies import NoCopyError, copied, restored

GROUPS = [make_group("a:1", ["x", "yy"])]


def test_lambdas_and_closures_run_in_a_process_that_is_killed_when_they_hang() -> None:
    words = ["yy"]

    def closed(completions: list[str]) -> list[float]:
        if os.environ.get("REINLM_WORKER") is None:
            return [-1.0] * len(completions)
        if "hang" in completions:
            time.sleep(600)
        return [float(text in words) for text in completions]

    with build_rewards([closed, lambda completions: [os.getpid()] * 2], time_limit=3, on_error="skip") as rewards:
        (first, pid), (second, _) = values(rewards.score(GROUPS))
        assert (first, second) == (0.0, 1.0)
        assert pid != os.getpid()
        scored = rewards.score([make_group("a:2", ["yy", "hang"])])
        assert scored.failures["closed"] == 1


def test_what_changes_or_holds_something_of_the_program_stays() -> None:
    seen: list[int] = []
    table: dict[str, int] = {}
    count = 0
    model = torch.nn.Linear(1, 1)
    large = b"x" * (33 << 20)

    def appends(completions: Any) -> None:
        seen.append(1)

    def sets(completions: Any) -> None:
        table["a"] = 1

    def counts(completions: Any) -> None:
        nonlocal count
        count += 1

    class Judge:
        def __call__(self, completions: Any) -> None: ...

    cases: list[tuple[Any, str]] = [
        (appends, "it changes 'seen' of the program"),
        (lambda completions: appends(completions), "it changes 'seen' of the program"),
        (sets, "it changes 'table' of the program"),
        (counts, "it changes 'count' of the program"),
        (lambda completions: model, "it holds a model or a tensor"),
        (lambda completions: large, "it holds more than 32 MiB"),
        (Judge(), "it is an object, whose state is here"),
    ]
    for function, why in cases:
        with pytest.raises(NoCopyError, match=why):
            copied(function)
    assert restored(copied(lambda completions: [table.get("a"), *completions]))(["b"]) == [None, "b"]


def test_an_overrun_in_this_process_says_why_the_function_runs_here() -> None:
    seen: list[int] = []

    def slow(completions: list[str]) -> list[float]:
        seen.append(1)
        time.sleep(3)
        return [0.0, 0.0]

    with (
        build_rewards(slow, time_limit=0.2) as rewards,
        pytest.raises(RunError, match="it changes 'seen' of the program"),
    ):
        rewards.score(GROUPS)
    assert seen == [1]
