from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rewards_support import longer_is_better, make_group, slowly, values, write

from reinlm.errors import InputError, RunError
from reinlm.records import RewardEvent
from reinlm.rewards import StepRewards, TrainerState, build_rewards

pytestmark = pytest.mark.no_cover


def score(function, groups, **options):
    with build_rewards(function, **options) as rewards:
        return rewards.score(groups, TrainerState(global_step=3, max_steps=10))


def test_a_function_is_passed_what_it_takes_and_nothing_else():
    seen: dict[str, Any] = {}

    def few(completion_ids, label):
        seen.update(completion_ids=completion_ids, label=label)
        return [0] * len(label)

    def everything(**kwargs):
        seen.update(kwargs)
        return [0] * len(kwargs["prompts"])

    groups = [make_group("a:1", ["x", "y"], tokens=2, label="l"), make_group("a:2", ["z"], tokens=1, other=7)]
    score(few, groups, call="batch")
    assert seen == {"completion_ids": [[10, 11], [10, 11], [10]], "label": ["l", "l", None]}
    seen.clear()
    score(everything, groups, call="batch")
    assert seen == {
        "prompts": ["2+2="] * 3,
        "completions": ["x", "y", "z"],
        "completion_ids": [[10, 11], [10, 11], [10]],
        "trainer_state": TrainerState(global_step=3, max_steps=10),
        "label": ["l", "l", None],
        "other": [None, None, 7],
    }


@pytest.mark.parametrize("limit", [None, 20])
def test_functions_written_for_trl_work_unchanged(tmp_path, limit):
    body = """
import re

def format_reward_func(completions, **kwargs):
    pattern = r"^<think>.*?</think><answer>.*?</answer>$"
    completion_contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(pattern, content) else 0.0 for content in completion_contents]

def curriculum(prompts, completions, ground_truth, completion_ids, trainer_state, **kwargs):
    assert all(prompt[-1]["role"] == "user" for prompt in prompts)
    bonus = trainer_state.global_step / trainer_state.max_steps
    return [None if truth is None else bonus + len(ids) for truth, ids in zip(ground_truth, completion_ids)]

async def remote(prompts, completions, log_extra=None, **kwargs):
    import asyncio
    await asyncio.sleep(0.01)
    return [1.0 if completion else 0.0 for completion in completions]
"""
    file = write(tmp_path, body)
    chats = [
        ({"role": "assistant", "content": "<think>a</think><answer>b</answer>"},),
        ({"role": "assistant", "content": "b"},),
    ]
    content = ({"role": "user", "content": "?"},)
    groups = [
        make_group("a:1", chats, content=content, ground_truth="b"),
        make_group("a:2", chats, content=content, ground_truth=None),
    ]
    scored = score(
        [f"{file}:{name}" for name in ("format_reward_func", "curriculum", "remote")], groups, time_limit=limit
    )
    assert values(scored) == [[1.0, 3.3, 1.0], [0.0, 3.3, 1.0], [1.0, 1.0], [0.0, 1.0]]
    assert values(scored, "curriculum") == [[3.3], [3.3], [], []]


def test_an_argument_that_is_no_column_is_named():
    def needs(completions, ground_thruth):
        raise AssertionError

    groups = [make_group("a:1", ["x"], ground_truth="b")]
    with pytest.raises(
        InputError, match=r"reward 'needs': it needs the argument 'ground_thruth'.*did you mean 'ground_truth'"
    ):
        score(needs, groups)
    with pytest.raises(InputError, match="columns: none"):
        score(needs, [make_group("a:1", ["x"])])


def test_numbers_of_every_kind_are_read():
    def kinds(completions):
        return [True, 2, np.float32(0.5), np.int64(3), torch.tensor(0.25, requires_grad=True), 1.5]

    assert values(score(kinds, [make_group("a:1", ["x"] * 6)])) == [[1.0], [2.0], [0.5], [3.0], [0.25], [1.5]]
    group = make_group("a:1", ["x", "y"])
    assert values(score(lambda completions: torch.tensor([1.0, 2.0]), [group])) == [[1.0], [2.0]]
    assert values(score(lambda completions: np.array([1, 2]), [group])) == [[1.0], [2.0]]
    assert values(score(lambda completions: (1, 2), [group])) == [[1.0], [2.0]]


def test_none_drops_the_term_for_that_answer_alone():
    scored = score(
        [lambda completions: [None, 0.0], {"name": longer_is_better, "weight": 0.5}], [make_group("a:1", ["ab", "abc"])]
    )
    assert values(scored) == [[2.0], [0.0, 3.0]]
    assert scored.groups[0].returns == (1.0, 1.5)
    assert scored.failures == {"lambda": 0, "longer_is_better": 0}


def test_answers_without_any_term_have_no_reward():
    scored = score(lambda completions: [None, None], [make_group("a:1", ["ab", "abc"])])
    assert scored.groups[0].events == ((), ())
    assert scored.groups[0].returns == (None, None)


def test_broken_rollouts_are_not_scored():
    seen = []

    def watch(completions):
        seen.extend(completions)
        return [1.0] * len(completions)

    scored = score(watch, [make_group("a:1", ["bad"], end="error"), make_group("a:2", ["cut"], end="length")])
    assert seen == ["cut"]
    assert values(scored) == [[], [1.0]]
    assert score("exact_match", []).groups == []
    assert values(score(watch, [make_group("a:1", ["bad"], end="error")])) == [[]]
    assert seen == ["cut"]


def test_step_rewards_land_on_their_tokens(tmp_path):
    file = write(
        tmp_path,
        "from reinlm.rewards import StepRewards\n"
        "def steps(completions):\n"
        "    return [StepRewards([(0, 0.5), (2, 1)], outcome=True), StepRewards([(1, -1)]), StepRewards([])]",
    )
    scored = score({"name": f"{file}:steps", "weight": 2}, [make_group("a:1", ["x", "y", "z"])])
    assert scored.groups[0].events == (
        (
            RewardEvent("steps", 0.5, token=0, weight=2.0),
            RewardEvent("steps", 1.0, token=2, weight=2.0),
            RewardEvent("steps", 1.0, token=None, weight=2.0),
        ),
        (RewardEvent("steps", -1.0, token=1, weight=2.0),),
        (),
    )


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            StepRewards([(3, 1.0)]),
            "put a step reward on token 3 of an answer of 3",
        ),
        (StepRewards([(-1, 1.0)]), "put a step reward on token -1 of an answer of 3"),
        (StepRewards([(0.5, 1.0)]), "put a step reward on token 0.5, which is no index"),  # type: ignore[list-item]
        (StepRewards([(True, 1.0)]), "put a step reward on token True, which is no index"),
        (StepRewards([(1, float("inf"))]), "returned the step reward inf on token 1"),
        (StepRewards([(1, 1.0)], outcome=float("nan")), "returned the outcome nan beside its steps"),
        (float("nan"), "returned nan"),
        (-np.inf, "returned .*inf"),
        ("0.5", "returned '0.5'"),
        ([1.0], r"returned \[1.0\]"),
        (np.array([1.0, 2.0]), r"returned array\(\[1., 2.\]\)"),
        (10**400, "returned 1000"),
        (1j, "returned 1j"),
    ],
)
def test_an_entry_that_is_no_finite_number_fails_its_answer_alone(bad, message):
    groups = [make_group("a:1", ["x"]), make_group("a:2", ["y", "z"])]
    with pytest.raises(RunError, match=f"reward 'lambda' ({message}).* for a:2, answer 2 of 2"):
        score(lambda completions: [1.0, 2.0, bad], groups, call="batch")
    scored = score([lambda completions: [1.0, 2.0, bad], longer_is_better], groups, on_error="skip", call="batch")
    assert values(scored) == [[1.0, 1.0], [2.0, 1.0], []]
    assert scored.failures == {"lambda": 1, "longer_is_better": 0}
    assert "answer 2 of 2" in scored.messages["lambda"]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1.0], "returned 1 values for 2 samples"),
        ([1.0, 2.0, 3.0], "returned 3 values for 2 samples"),
        (None, "returned None instead of a list of 2 values"),
        (0.5, "returned 0.5 instead of a list"),
        ("ab", "returned 'ab' instead of a list"),
        ({"a": 1, "b": 2}, "returned {'a': 1, 'b': 2} instead of a list"),
        (torch.tensor(1.0), r"returned tensor\(1.\) instead of a list"),
        ((x for x in (1.0, 2.0)), "returned <generator.* instead of a list"),
    ],
)
def test_a_result_of_the_wrong_kind_or_count_fails_the_call(result, message):
    groups = [make_group("a:1", ["x"]), make_group("a:2", ["y"])]
    with pytest.raises(
        RunError, match=f"reward 'lambda' {message}.* in a call with 2 answers, from a:1, answer 1 of 1 on"
    ):
        score(lambda completions: result, groups, call="batch")


def test_what_a_function_raises_is_named_with_its_line_and_counted():
    def boom(completions):
        raise ValueError("no\nsuch thing")

    groups = [make_group("a:1", ["x", "y"])]
    with pytest.raises(
        RunError, match=r"reward 'boom' raised ValueError: no such thing \(.*test_rewards_scoring.py:\d+\)"
    ):
        score(boom, groups)
    scored = score([boom, longer_is_better], groups, on_error="skip")
    assert values(scored) == [[], []]
    assert scored.failures == {"boom": 2, "longer_is_better": 0}


def test_sys_exit_in_this_process_is_a_failure_not_the_end():
    def leave(completions):
        raise SystemExit(0)

    for limit in (None, 5):
        with pytest.raises(RunError, match="reward 'leave' raised SystemExit: 0"):
            score(leave, [make_group("a:1", ["x"])], time_limit=limit)


def test_ctrl_c_during_a_function_without_limit_goes_through():
    def interrupted(completions):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score(interrupted, [make_group("a:1", ["x"])], time_limit=None)


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_a_closure_that_overruns_stops_the_run_and_says_what_to_do(on_error):
    release = threading.Event()

    def endless(completions):
        release.wait(30)
        return [1.0]

    start = time.monotonic()
    with pytest.raises(RunError, match=r"reward 'endless' overran its time limit of 0.2 s in this process") as caught:
        score(endless, [make_group("a:1", ["x"])], time_limit=0.2, on_error=on_error)
    release.set()
    assert time.monotonic() - start < 10
    assert "file.py:function" in (caught.value.hint or "")


def test_a_call_in_this_process_has_ended_when_another_reward_fails(tmp_path):
    (tmp_path / "wrong.py").write_text("def wrong(completions):\n    raise ValueError('no such thing')\n")
    ended = threading.Event()

    def slow(completions):
        time.sleep(2.0)
        ended.set()
        return [1.0]

    with pytest.raises(RunError, match="'wrong' raised ValueError"):
        score([slow, f"{tmp_path / 'wrong.py'}:wrong"], [make_group("a:1", ["x"])], time_limit=30)
    assert ended.is_set()  # an interpreter that ends while a thread of it is inside torch is aborted


def test_async_functions_work_while_a_loop_is_running():
    async def half(completions):
        await asyncio.sleep(0.01)
        return [0.5]

    async def notebook(limit):
        return values(score([half, slowly], [make_group("a:1", ["x"])], time_limit=limit))

    assert asyncio.run(notebook(None)) == [[0.5, 0.25]]
    assert asyncio.run(notebook(10)) == [[0.5, 0.25]]


def test_a_callable_without_a_signature_is_passed_everything():
    class Odd:
        __signature__ = "none"

        def __call__(self, **kwargs):
            return [float(len(kwargs))]

    assert values(score(Odd(), [make_group("a:1", ["x"], answer="y")])) == [[5.0]]


def test_a_function_cannot_change_what_the_next_one_sees():
    def vandal(completions, prompts):
        completions[0][0]["content"] = "changed"
        prompts.clear()
        return [0.0]

    seen = SimpleNamespace()

    def later(completions, prompts):
        seen.text, seen.count = completions[0][0]["content"], len(prompts)
        return [0.0]

    score([vandal, later], [make_group("a:1", [({"role": "assistant", "content": "kept"},)])])
    assert (seen.text, seen.count) == ("kept", 1)


def test_a_closed_set_scores_no_more():
    rewards = build_rewards(longer_is_better)
    rewards.close()
    rewards.close()
    with pytest.raises(RunError, match="closed"):
        rewards.score([make_group("a:1", ["x"])])


def test_the_state_is_optional():
    with build_rewards(lambda completions, trainer_state: [trainer_state.global_step]) as rewards:
        assert values(rewards.score([make_group("a:1", ["x"])])) == [[0.0]]
