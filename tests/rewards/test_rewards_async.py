"""Scoring group by group while an event loop does other things, and what one call scores."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rewards_support import longer_is_better, make_group, values, write

from reinlm.config import build
from reinlm.errors import InputError, RunError
from reinlm.rewards import RewardConfig, TrainerState, build_rewards

BODY = """
import os, time
SEEN = []

def order(completions, column, **kwargs):
    SEEN.append(column[0])
    time.sleep(0.05 if column[0] % 2 else 0)
    return [float(len(SEEN)), float(column[0] == len(SEEN) - 1)]

def slow(completions):
    time.sleep(0.5)
    return [1.0] * len(completions)

def hang(completions, column):
    if column[0] == 1:
        time.sleep(60)
    return [1.0] * len(completions)

def pid(completions):
    return [float(os.getpid())] * len(completions)

def count(completions):
    return [float(len(completions))] * len(completions)

def given(completions, **kwargs):
    return [float(len(kwargs)), kwargs.get("label", [0.5])[0] is None]
"""


def groups(count):
    return [make_group(f"a:{number}", ["x", "y"], column=number) for number in range(count)]


async def tick(until, interval=0.01):
    """How often the event loop came round while a task ran."""
    ticks = 0
    while not until.done():
        await asyncio.sleep(interval)
        ticks += 1
    return ticks


def test_calls_to_one_function_are_made_in_the_order_in_which_groups_were_passed(tmp_path):
    file = write(tmp_path, BODY)
    seen = []

    def here(completions, column):
        time.sleep(0.02 if column[0] % 2 else 0)
        seen.append(column[0])
        return [0.0, 0.0]

    async def main(rewards):
        passed = [rewards.score_group(group, TrainerState(1)) for group in groups(8)]
        return await asyncio.gather(*reversed(passed))

    with build_rewards([f"{file}:order", here], time_limit=20) as rewards:
        scored = asyncio.run(main(rewards))
    assert [values(one, "order") for one in reversed(scored)] == [[[n + 1.0], [1.0]] for n in range(8)]
    assert seen == list(range(8))


def test_the_event_loop_is_free_while_functions_run(tmp_path):
    def here(completions):
        time.sleep(0.5)
        return [2.0, 2.0]

    async def main(rewards):
        task = asyncio.ensure_future(rewards.score_group(groups(1)[0]))
        return await tick(task), await task

    for function, value in ((f"{write(tmp_path, BODY)}:slow", 1.0), (here, 2.0)):
        with build_rewards(function, time_limit=20) as rewards:
            ticks, scored = asyncio.run(main(rewards))
        assert values(scored) == [[value], [value]]
        assert ticks > 10


def test_functions_of_this_process_run_one_at_a_time():
    running = []
    most = []

    def one(completions):
        running.append(1)
        most.append(len(running))
        time.sleep(0.03)
        running.pop()
        return [threading.current_thread() is threading.main_thread()] * 2

    def two(completions):
        return one(completions)

    async def main(rewards):
        return await asyncio.gather(*(rewards.score_group(group) for group in groups(3)))

    with build_rewards([one, two], time_limit=20) as rewards:
        assert values(asyncio.run(main(rewards))[0]) == [[0.0, 0.0]] * 2
    assert most == [1] * 6
    with build_rewards(one, time_limit=None) as rewards:
        assert values(asyncio.run(main(rewards))[0]) == [[1.0]] * 2


def test_a_call_that_overruns_is_killed_and_the_next_ones_are_made(tmp_path):
    async def main(rewards):
        return await asyncio.gather(*(rewards.score_group(group) for group in groups(3)), return_exceptions=True)

    file = write(tmp_path, BODY)
    with build_rewards(f"{file}:hang", time_limit=0.5) as rewards:
        first, second, third = asyncio.run(main(rewards))
        assert isinstance(second, RunError)
        assert "reward 'hang' overran its time limit of 0.5 s in a call with 2 answers, from a:1" in str(second)
        assert values(first) == values(third) == [[1.0], [1.0]]
    with build_rewards([f"{file}:hang", longer_is_better], time_limit=0.5, on_error="skip") as rewards:
        first, second, third = asyncio.run(main(rewards))
        assert values(second) == [[], []]
        assert second.failures == {"hang": 2, "longer_is_better": 0}
        assert values(first) == values(third) == [[1.0, 1.0]] * 2


def test_a_task_that_is_cancelled_ends_its_call(tmp_path):
    async def main(rewards):
        await rewards.score_group(groups(1)[0])
        task = asyncio.ensure_future(rewards.score_group(groups(2)[1]))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        start = time.monotonic()
        scored = await rewards.score_group(groups(1)[0])
        return scored, time.monotonic() - start

    with build_rewards(f"{write(tmp_path, BODY)}:hang", time_limit=60) as rewards:
        scored, seconds = asyncio.run(main(rewards))
    assert values(scored) == [[1.0], [1.0]]
    assert seconds < 10


def test_one_failure_ends_the_other_calls_of_a_step_early(tmp_path):
    file = write(tmp_path, BODY + "\ndef broken(completions): raise ValueError('boom')")
    with build_rewards([f"{file}:hang", f"{file}:broken", f"{file}:pid"], time_limit=60) as rewards:
        start = time.monotonic()
        with pytest.raises(RunError, match="reward 'broken' raised ValueError: boom"):
            rewards.score(groups(2))
        assert time.monotonic() - start < 10


def test_one_call_scores_a_group_or_the_whole_step(tmp_path):
    file = write(tmp_path, BODY)
    call: Any
    for call, wanted in (("group", 2.0), ("batch", 6.0)):
        with build_rewards(
            [f"{file}:count", lambda completions: [len(completions)] * len(completions)], call=call
        ) as rewards:
            assert values(rewards.score(groups(3))) == [[wanted, wanted]] * 6
        config = build(RewardConfig, {"functions": f"{file}:count", "call": call})
        with build_rewards(config) as rewards:
            assert values(rewards.score(groups(3))) == [[wanted]] * 6


def test_what_a_call_scores_changes_no_result_of_a_function_that_looks_at_each_answer_alone():
    rows = [make_group("a:1", ["x", "xyz"], label="l"), make_group("a:2", ["xy"], other=7)]

    def each(completions, label, other):
        return [
            len(text) + 10.0 * (one is None) + 100.0 * (two is None)
            for text, one, two in zip(completions, label, other, strict=True)
        ]

    scored = {}
    for call in ("group", "batch"):
        with build_rewards(each, call=call) as rewards:
            scored[call] = rewards.score(rows)
    assert values(scored["group"]) == [[101.0], [103.0], [12.0]]
    assert scored["group"] == scored["batch"]


def test_a_group_scored_alone_has_the_columns_of_the_data_set_where_they_are_given(tmp_path):
    async def main(rewards):
        group = groups(1)[0]
        return [
            values(await rewards.score_group(group)),
            values(await rewards.score_group(group, columns=("column", "label"))),
        ]

    with build_rewards(f"{write(tmp_path, BODY)}:given") as rewards:
        assert asyncio.run(main(rewards)) == [[[4.0], [0.0]], [[5.0], [1.0]]]


def test_one_group_cannot_be_scored_where_a_call_takes_the_whole_step():
    with (
        build_rewards(longer_is_better, call="batch") as rewards,
        pytest.raises(InputError, match=r"reward.call=batch"),
    ):
        _ = rewards.score_group(groups(1)[0])  # raises at once, before it is awaited
    with pytest.raises(InputError, match="call"):
        build_rewards(longer_is_better, call="step")  # type: ignore[arg-type]


def test_an_error_of_a_function_without_limit_is_raised_where_the_group_is_awaited():
    def broken(completions):
        raise ValueError("boom")

    async def main(rewards):
        scoring = rewards.score_group(groups(1)[0])
        with pytest.raises(RunError, match="reward 'broken' raised ValueError: boom"):
            await scoring

    with build_rewards(broken, time_limit=None) as rewards:
        asyncio.run(main(rewards))


def test_a_group_without_an_answer_to_score_calls_nothing():
    async def main(rewards):
        return await rewards.score_group(make_group("a:1", ["x"], end="error"))

    with build_rewards(longer_is_better) as rewards:
        assert values(asyncio.run(main(rewards))) == [[]]
        rewards.close()
        with pytest.raises(RunError, match="closed"):
            _ = rewards.score_group(groups(1)[0])


def test_a_program_ends_at_once_while_functions_of_its_own_still_run(tmp_path):
    script = (
        f"import sys, time\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from rewards_support import make_group\nfrom reinlm.rewards import build_rewards\n"
        "def endless(completions): time.sleep(60)\n"
        f"rewards = build_rewards([endless, {write(tmp_path, BODY) + ':hang'!r}], time_limit=50)\n"
        "scoring = rewards.score_group(make_group('a:1', ['x'], column=1))\nscoring.close()\ntime.sleep(0.2)\n"
        "rewards.close()\n"
    )
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    assert time.monotonic() - start < 20
