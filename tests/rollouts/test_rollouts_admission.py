"""What enters the engine's batch, and when: a function of the run, whatever environments, tools and rewards take."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_helpers import EOS, LINES, PAD, ScriptedEngine

from reinlm.data.rendering import Renderer
from reinlm.environments import Action, StepResult
from reinlm.errors import RunError
from reinlm.models.tiny import character_tokenizer, tiny_model
from reinlm.records import RewardEvent, RolloutGroup, ScoredGroup, Task
from reinlm.rewards.values import TrainerState
from reinlm.rollouts.admission import Wave
from reinlm.rollouts.groups import Episodes, Sampled, sample_groups
from reinlm.rollouts.hf_engine import HFEngine
from reinlm.rollouts.protocol import Request, Sampling

TOKENIZER = character_tokenizer("abcdefghijklmnopqrstuvwxyz:\n0123456789", chat_template=LINES)
MODEL = tiny_model("qwen3", vocab_size=len(TOKENIZER), hidden_size=32, context=64, init_std=0.3, seed=3)
SAMPLING = Sampling(max_new_tokens=12, temperature=1.3, stop_token_ids=(EOS, *range(2, 16)))
TASKS = [Task(f"data[{i}]", ({"role": "user", "content": "abcdefg"[: i + 1]},)) for i in range(4)]
RENDERER = Renderer(TOKENIZER)


class Clock:
    """Random waits, to the millisecond and another each time."""

    def __init__(self, seed: int | None) -> None:
        self.random = None if seed is None else random.Random(seed)

    def seconds(self) -> float:
        return self.random.choice((0.0, 0.0, 0.001, 0.004)) if self.random else 0.0


class Slow:
    """One to four turns, as the first answer has it, with observations of several lengths, and waits in a thread."""

    name = "slow"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.said: list[str] = []

    def reset(self, task: Task) -> None:
        time.sleep(self.clock.seconds())

    def step(self, action: Action) -> StepResult:
        time.sleep(self.clock.seconds())
        self.said.append(action.text)
        if len(self.said) > len(self.said[0]) % 4:
            return StepResult(reward=float(len(action.text)), terminated=True)
        return StepResult("xyzw"[: 1 + len(action.text) % 4])


class AsyncSlow(Slow):
    async def reset(self, task: Task) -> None:  # type: ignore[override]
        await asyncio.sleep(self.clock.seconds())

    async def step(self, action: Action) -> StepResult:  # type: ignore[override]
        await asyncio.sleep(self.clock.seconds())
        return Slow.step(self, action)


class SlowRewards:
    """The share of letters that are vowels, after a wait; notes whom it was asked for, and when."""

    call = "group"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.asked: list[str] = []
        self.answered: list[str] = []

    async def score_group(
        self, group: RolloutGroup, state: TrainerState | None, *, columns: Any, token_ends: Any
    ) -> Any:
        self.asked.append(group.task.id)
        await asyncio.sleep(self.clock.seconds())
        self.answered.append(group.task.id)
        events = tuple((RewardEvent("length", float(rollout.length)),) for rollout in group.rollouts)
        return Scored([ScoredGroup(group, events)])


class Scored:
    def __init__(self, groups: list[ScoredGroup], failures: dict[str, int] | None = None) -> None:
        self.usage: dict[str, Any] = {}
        self.groups = groups
        self.failures = failures or {}
        self.messages: dict[str, str] = {}


def sample(kind: type[Slow], seed: int | None, max_batch: int, order: Any = "name") -> tuple[Sampled, SlowRewards]:
    clock = Clock(seed)
    engine = HFEngine(MODEL, TOKENIZER, pad_id=PAD, max_batch=max_batch)
    episodes = Episodes(engine, RENDERER, SAMPLING, lambda: kind(clock), order=order)
    rewards: Any = SlowRewards(clock)
    return sample_groups(episodes, TASKS, group_size=3, tag="1/0/0", rewards=rewards), rewards


REFERENCE = {max_batch: sample(AsyncSlow, None, max_batch)[0].groups for max_batch in (3, 5, 64)}


@pytest.mark.parametrize("kind", [Slow, AsyncSlow])
@given(seed=st.integers(0, 10**6), max_batch=st.sampled_from(sorted(REFERENCE)))
@settings(max_examples=12)
def test_waits_in_environments_and_rewards_change_no_bit(kind: type[Slow], seed: int, max_batch: int) -> None:
    found, rewards = sample(kind, seed, max_batch)
    assert found.groups == REFERENCE[max_batch]
    assert rewards.asked == [task.id for task in TASKS]


def test_the_reference_has_episodes_of_several_turns_and_lengths() -> None:
    rollouts = [rollout for group in REFERENCE[3] for rollout in group.group.rollouts]
    assert {rollout.turns for rollout in rollouts} >= {1, 2, 3}
    assert len({rollout.length for rollout in rollouts}) > 5
    assert {rollout.reason for rollout in rollouts} >= {"environment", "length"}


def test_in_order_of_arrival_the_same_tokens_are_sampled_with_logprobs_to_rounding() -> None:
    found, _ = sample(AsyncSlow, 5, 5, "arrival")
    for group, expected in zip(found.groups, REFERENCE[5], strict=True):
        for rollout, other in zip(group.group.rollouts, expected.group.rollouts, strict=True):
            ours, theirs = rollout.segments[0], other.segments[0]
            assert np.array_equal(ours.token_ids, theirs.token_ids)
            assert np.allclose(ours.columns["rollout_logprobs"], theirs.columns["rollout_logprobs"], atol=1e-4)


def test_every_wave_of_turns_enters_together_in_the_order_of_the_episodes() -> None:
    """Three episodes of 3, 1 and 2 turns, whose requests come in another order."""
    script = dict.fromkeys(("a", "b", "c", "a/1", "c/1", "a/2"), "x")
    engine = ScriptedEngine(TOKENIZER, script)
    waits = {"a": 0.01, "b": 0.02, "c": 0.0}
    asked_after: list[tuple[str, int]] = []

    async def episode(slot: Any, name: str, turns: int) -> None:
        for turn in range(turns):
            await asyncio.sleep(waits[name])
            request = Request(f"{name}/{turn}" if turn else name, (2,), SAMPLING)
            asked_after.append((request.id, len(engine.asked)))
            await slot.generate(request)
        slot.leave()

    async def main(order: Any) -> list[str]:
        wave = Wave(engine, 3, order)
        slots = zip(wave.slots, "abc", (3, 1, 2), strict=True)
        await asyncio.gather(*(episode(*slot) for slot in slots))
        return [request.id for request in engine.asked]

    assert asyncio.run(main("name")) == ["a", "b", "c", "a/1", "c/1", "a/2"]
    assert asked_after == [("c", 0), ("a", 0), ("b", 0), ("c/1", 3), ("a/1", 3), ("a/2", 5)]
    engine.asked.clear()
    assert asyncio.run(main("arrival"))[:3] == ["c", "c/1", "a"]


def test_a_reward_is_at_work_while_other_answers_are_sampled() -> None:
    engine = HFEngine(MODEL, TOKENIZER, pad_id=PAD)
    steps: list[int] = []
    step = engine.step
    waited: list[str] = []

    def counted() -> Any:
        steps.append(1)
        return step()

    engine.step = counted  # type: ignore[method-assign]

    class Waits(SlowRewards):
        async def score_group(
            self, group: RolloutGroup, state: TrainerState | None, *, columns: Any, token_ends: Any
        ) -> Any:
            if group.task.id == "short":  # ends where the engine goes on meanwhile, and only there
                before = len(steps)
                async with asyncio.timeout(10):
                    while len(steps) == before:
                        await asyncio.sleep(0.001)
                waited.append(group.task.id)
            return await super().score_group(group, state, columns=columns, token_ends=token_ends)

    class Turns:
        def reset(self, task: Task) -> str:
            self.left = {"short": 1, "long": 4}[task.id]
            return "ab"

        async def step(self, action: Action) -> StepResult:
            self.left -= 1
            return StepResult("ab", 0.0, not self.left)

    answers = Sampling(max_new_tokens=8, temperature=1.3, stop_token_ids=tuple(range(len(TOKENIZER))))
    episodes = Episodes(engine, RENDERER, answers, Turns)
    rewards: Any = Waits(Clock(None))
    found = sample_groups(episodes, [Task("short", "a"), Task("long", "a")], group_size=2, tag="t", rewards=rewards)
    assert waited == ["short"]
    assert [group.group.rollouts[0].turns for group in found.groups] == [1, 4]


def test_an_error_in_one_episode_ends_all_and_leaves_the_engine_empty() -> None:
    engine = HFEngine(MODEL, TOKENIZER, pad_id=PAD)
    closed: list[str] = []

    class Fails(AsyncSlow):
        async def reset(self, task: Task) -> None:  # type: ignore[override]
            self.task = task

        async def step(self, action: Action) -> StepResult:  # type: ignore[override]
            raise ValueError("broken")

        async def close(self) -> None:
            closed.append(self.task.id)

    episodes = Episodes(engine, RENDERER, SAMPLING, lambda: Fails(Clock(None)))
    with pytest.raises(RunError, match=r"environment Fails, task data\[\d\]: step raised ValueError: broken"):
        sample_groups(episodes, TASKS, group_size=3, tag="t")
    assert engine.in_flight == 0
    assert len(closed) == 12
