"""Rewards over HTTP: a real server that is busy, refuses, hangs, answers nonsense and dies; and async functions."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rewards_support import make_group, values, write

from reinlm.errors import RunError
from reinlm.rewards import build_rewards

CLIENT = """
import asyncio, json, urllib.request

URL = "http://127.0.0.1:PORT/score"

def ask(text, mode="ok", seconds=0.0):
    data = json.dumps({"text": text, "mode": mode, "seconds": seconds}).encode()
    with urllib.request.urlopen(urllib.request.Request(URL, data), timeout=60) as reply:
        return json.load(reply)

def judge(completions, mode, log_metric):
    log_metric("asked", len(completions))
    return [ask(text, one)["score"] for text, one in zip(completions, mode)]

async def gathered(completions, mode):
    asked = (asyncio.to_thread(ask, text, one) for text, one in zip(completions, mode))
    return [reply["score"] for reply in await asyncio.gather(*asked)]

async def one(completion, mode):
    return (await asyncio.to_thread(ask, completion, mode))["score"]

async def most(completion):
    return (await asyncio.to_thread(ask, completion, "ok", 0.3))["most"]

async def patient(completion):
    await asyncio.sleep(60 if completion == "slow" else 0)
    return 1.0
"""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[str]:
    port = tmp_path / "port"
    server = subprocess.Popen([sys.executable, str(Path(__file__).parent / "http_judge.py"), str(port)])
    deadline = time.monotonic() + 60
    while not (port.exists() and port.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    yield write(tmp_path, CLIENT.replace("PORT", port.read_text()))
    server.kill()
    server.wait()


def groups(mode: str) -> list[Any]:
    return [make_group("a:1", ["x", "xyz", "xy"], mode=mode)]


@pytest.mark.parametrize("function", ["judge", "gathered", "one"])
def test_a_service_that_is_busy_for_a_while_is_asked_again(client: str, function: str) -> None:
    with build_rewards(f"{client}:{function}", retries=4, retry_delay=0.01) as rewards:
        scored = rewards.score(groups("busy:3"))
    assert values(scored) == [[1.0], [3.0], [2.0]]
    used = scored.usage[function]
    assert used.failed == 0
    assert 1 <= used.retries <= 3
    if (
        function == "judge"
    ):  # one after the other: each attempt ends at the first 503; what failed attempts logged is dropped
        assert (used.calls, used.retries, used.metrics) == (4, 3, {"asked": (3.0, 1)})


def test_a_service_that_stays_away_ends_the_run_with_what_to_do_or_loses_its_answers_alone(client: str) -> None:
    with (
        build_rewards(f"{client}:judge", retries=2, retry_delay=0.01) as rewards,
        pytest.raises(RunError, match=r"raised HTTPError: HTTP Error 503.* in each of 3 attempts,") as caught,
    ):
        rewards.score(groups("busy:1000"))
    assert "raise reward.retries (2) or reward.retry_delay (0.01 s)" in str(caught.value)
    assert "set reward.on_reward_error=skip" in str(caught.value)
    with build_rewards([f"{client}:judge", len_of], retries=1, retry_delay=0.01, on_error="skip") as rewards:
        scored = rewards.score([*groups("busy:1000"), make_group("a:2", ["abc"], mode="ok")])
    assert values(scored) == [[], [], [], [3.0, 3.0]]
    assert scored.failures == {"judge": 3, "len_of": 0}


def len_of(completions: list[str]) -> list[float]:
    return [float(len(text)) for text in completions]


@pytest.mark.parametrize("function", ["judge", "gathered", "one"])
def test_one_answer_that_a_service_refuses_loses_itself_alone(client: str, function: str) -> None:
    group = make_group("a:1", ["x", "refused", "xy"], mode="ok")
    start = time.monotonic()
    with build_rewards(f"{client}:{function}", retry_delay=30, on_error="skip") as rewards:
        scored = rewards.score([group])
    assert values(scored) == [[1.0], [], [2.0]]
    assert scored.failures == {function: 1}
    assert "HTTP Error 400" in scored.messages[function]
    assert time.monotonic() - start < 25  # a refusal does not pass: nothing waits


def test_without_one_by_one_a_call_is_lost_as_a_whole(client: str) -> None:
    group = make_group("a:1", ["x", "refused", "xy"], mode="ok")
    with build_rewards(f"{client}:judge", on_error="skip", one_by_one=False) as rewards:
        assert rewards.score([group]).failures == {"judge": 3}


def test_wrong_shapes_are_named_and_not_asked_for_again(client: str) -> None:
    with build_rewards(f"{client}:judge", retry_delay=30) as rewards, pytest.raises(RunError, match="raised TypeError"):
        rewards.score(groups("shape"))


def test_a_service_that_hangs_is_given_up_after_two_answers_alone(client: str) -> None:
    start = time.monotonic()
    with build_rewards(f"{client}:judge", time_limit=1.0, on_error="skip") as rewards:
        scored = rewards.score([make_group("a:1", ["x"] * 8, mode="hang")])
    assert scored.failures == {"judge": 8}
    assert scored.usage["judge"].calls == 3  # the group, and two answers
    assert time.monotonic() - start < 60


def test_a_service_that_dies_in_the_middle_of_an_answer_is_asked_again_and_then_lost(client: str) -> None:
    with build_rewards(f"{client}:judge", retries=1, retry_delay=0.01, on_error="skip") as rewards:
        scored = rewards.score(groups("die"))
    assert scored.failures == {"judge": 3}
    assert scored.usage["judge"].retries == 1


def test_an_async_function_of_one_answer_asks_for_as_many_at_once_as_it_may(client: str) -> None:
    group = make_group("a:1", ["x"] * 8)
    for concurrency in (1, 3):
        with build_rewards(f"{client}:most", concurrency=concurrency) as rewards:
            assert max(value for (value,) in values(rewards.score([group]))) == concurrency


@pytest.mark.parametrize("place", ["worker", "here"])
def test_an_answer_that_an_async_function_hangs_on_is_lost_alone(client: str, place: str) -> None:
    import asyncio

    class Patient:
        async def __call__(self, completion: str) -> float:
            await asyncio.sleep(60 if completion == "slow" else 0)
            return 1.0

    function = f"{client}:patient" if place == "worker" else Patient()
    with build_rewards(function, time_limit=1.0, on_error="skip") as rewards:
        scored = rewards.score([make_group("a:1", ["x", "slow", "y"])])
    assert values(scored) == [[1.0], [], [1.0]]
    assert "overran its time limit of 1 s" in next(iter(scored.messages.values()))
