"""From tasks to batches of scored groups."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rollout_helpers import EOS, LINES, PAD, requests

from reinlm import rollouts
from reinlm.data.order import RowOrder
from reinlm.data.rendering import Renderer
from reinlm.environments import Action, Question, StepResult
from reinlm.errors import InputError, RunError
from reinlm.models.tiny import character_tokenizer, tiny_model
from reinlm.records import RewardEvent, RolloutGroup, ScoredGroup, Task
from reinlm.rewards.values import TrainerState
from reinlm.rollouts.event_loop import EventLoop
from reinlm.rollouts.groups import Episodes, Sampled, run_group, sample_groups
from reinlm.rollouts.hf_engine import HFEngine
from reinlm.rollouts.protocol import Request, Sampling
from reinlm.rollouts.source import Collected, Source

TOKENIZER = character_tokenizer("abcdefghijklmnopqrstuvwxyz:\n0123456789", chat_template=LINES)
SAMPLING = Sampling(max_new_tokens=10, temperature=1.5, stop_token_ids=(EOS, *range(30, 34)))
CONTENTS = ["a", "bcd", "efghi", "j", "klmn", "op"]
TASKS = [Task(f"data[{i}]", content, {"place": i}) for i, content in enumerate(CONTENTS)]


def engine(version: int = 0, max_batch: int = 6) -> HFEngine:
    model = tiny_model("qwen3", vocab_size=len(TOKENIZER), hidden_size=32, context=48, init_std=0.2, seed=7)
    made = HFEngine(model, TOKENIZER, pad_id=PAD, max_batch=max_batch)
    made.update(None, version)
    return made


def episodes(**changes: Any) -> Episodes:
    renderer = Renderer(TOKENIZER)
    return replace(Episodes(changes.pop("engine", None) or engine(), renderer, SAMPLING), **changes)


def gather(how: Episodes | None = None, **changes: Any) -> Sampled:
    tasks = changes.pop("tasks", TASKS)
    return sample_groups(how or episodes(), tasks, **{"group_size": 3, "tag": "train/1", **changes})


def answers(found: Sampled) -> dict[str, list[list[int]]]:
    return {
        scored.group.task.id: [rollout.segments[0].chosen_ids.tolist() for rollout in scored.group.rollouts]
        for scored in found.groups
    }


class Scored:
    """The shape of `reinlm.rewards.Scored`."""

    def __init__(self, groups: Sequence[ScoredGroup], failures: dict[str, int], messages: dict[str, str]) -> None:
        self.usage: dict[str, Any] = {}
        self.groups, self.failures, self.messages = groups, failures, messages


class Rewards:
    """The interface of `reinlm.rewards.RewardSet`: a reward by task and answer; "fail" fails on an answer."""

    def __init__(self, value: Callable[[Task, Any], float | str | None], call: str = "group") -> None:
        self.value = value
        self.call = call
        self.calls: list[tuple[list[str], Any]] = []

    async def score_group(
        self, group: RolloutGroup, state: TrainerState | None, *, columns: Any, token_ends: Any
    ) -> Any:
        return self.score([group], state, token_ends=token_ends)

    def score(self, groups: Sequence[RolloutGroup], state: TrainerState | None = None, *, token_ends: Any) -> Any:
        self.calls.append(([group.task.id for group in groups], state))
        failures, scored = 0, []
        for group in groups:
            values = [self.value(group.task, rollout) for rollout in group.rollouts]
            failures += values.count("fail")
            events = [() if v in (None, "fail") else (RewardEvent("mine", float(v)),) for v in values]
            scored.append(ScoredGroup(group, tuple(events)))
        return Scored(scored, {"mine": failures}, {"mine": "it failed"} if failures else {})


def test_groups_come_in_the_order_of_tasks_with_what_the_sampler_knows() -> None:
    sampler = engine(version=7)
    found = gather(episodes(engine=sampler))
    assert [scored.group.task for scored in found.groups] == TASKS
    reasons = set()
    for scored in found.groups:
        assert len(scored.group.rollouts) == 3
        for rollout in scored.group.rollouts:
            (segment,) = rollout.segments
            prompt = Renderer(TOKENIZER).prompt(rollout.task.content, "")
            assert segment.token_ids[: len(prompt)].tolist() == prompt
            assert segment.positions.tolist() == list(range(len(prompt), len(segment)))
            assert set(segment.columns["version"].tolist()) == {7}
            ids = torch.tensor(segment.token_ids, dtype=torch.long)
            with torch.no_grad():
                logits = sampler._model(ids[None]).logits[0].double() / 1.5
            expected = [logits[p - 1].log_softmax(-1)[ids[p]].item() for p in segment.positions]
            assert segment.columns["rollout_logprobs"] == pytest.approx(expected, abs=1e-4)
            stopped = int(segment.chosen_ids[-1]) in SAMPLING.stop_token_ids
            assert rollout.reason == ("stop" if stopped else "length")
            assert (rollout.terminated, rollout.truncated) == (stopped, not stopped)
            reasons.add(rollout.reason)
    assert reasons == {"stop", "length"}


def test_one_turn_groups_have_the_bits_of_the_engines_own_stream() -> None:
    """Group by group and sample by sample, as one submission: admission changes nothing of what is sampled."""
    sampler = engine()
    prompts = [tuple(Renderer(TOKENIZER).prompt(content, "")) for content in CONTENTS]
    names = [f"train/1/{task.id}/{k}" for task in TASKS for k in range(3)]
    asked = requests(SAMPLING, prompts, samples=3)
    sampler.submit([replace(request, id=name) for request, name in zip(asked, names, strict=True)])
    stream = {}
    while sampler.in_flight:
        stream.update({completion.id: completion for completion in sampler.step()})
    found = gather(episodes(engine=sampler))
    rollouts = [rollout for scored in found.groups for rollout in scored.group.rollouts]
    for name, rollout in zip(names, rollouts, strict=True):
        (segment,) = rollout.segments
        assert segment.chosen_ids.tolist() == stream[name].token_ids.tolist()
        assert segment.columns["rollout_logprobs"].tobytes() == stream[name].columns["rollout_logprobs"].tobytes()


def test_answers_depend_on_seed_tag_task_and_sample_alone() -> None:
    reference = answers(gather())
    assert answers(gather(tasks=TASKS[::-1])) == reference
    fewer = answers(gather(tasks=TASKS[2:4], group_size=2))
    assert fewer == {name: reference[name][:2] for name in fewer}
    assert all(len(set(map(tuple, group))) > 1 for group in reference.values())
    for other in (answers(gather(episodes(seed=1))), answers(gather(tag="train/2"))):
        assert all(other[name] != reference[name] for name in reference)
    assert answers(gather(episodes(order="arrival"))) == reference


def test_a_group_alone_is_the_group_among_others() -> None:
    how = episodes()
    group = asyncio.run(run_group(how, TASKS[2], group_size=3, name=f"train/1/{TASKS[2].id}"))
    assert [r.segments[0].chosen_ids.tolist() for r in group.rollouts] == answers(gather())[TASKS[2].id]


def test_progress_counts_up_to_all_episodes() -> None:
    seen: list[tuple[int, int]] = []
    gather(on_progress=lambda ended, total: seen.append((ended, total)))
    assert seen == [(count, 18) for count in range(1, 19)]


def test_an_interrupt_closes_every_environment_and_takes_back_what_was_asked_for() -> None:
    """As the second Ctrl-C does it: raised inside a task, not delivered to the main one."""
    counts = {"made": 0, "closed": 0}

    class Counted(Question):
        def __init__(self) -> None:
            counts["made"] += 1

        async def close(self) -> None:
            await asyncio.sleep(0)
            counts["closed"] += 1

    def interrupt(ended: int, total: int) -> None:
        raise KeyboardInterrupt

    how = episodes(environment=Counted)
    with pytest.raises(KeyboardInterrupt):
        gather(how, on_progress=interrupt)
    assert counts == {"made": 18, "closed": 18}
    assert how.engine.in_flight == 0  # type: ignore[attr-defined]
    assert len(gather(how).groups) == len(TASKS)


def test_it_works_where_an_event_loop_runs_already() -> None:
    async def notebook(loop: EventLoop | None) -> Sampled:
        return gather(loop=loop)

    with EventLoop() as loop:
        assert answers(asyncio.run(notebook(loop))) == answers(gather(loop=loop)) == answers(gather())
    assert answers(asyncio.run(notebook(None))) == answers(gather())


def test_an_event_loop_goes_on_after_an_error_and_leaves_no_task_behind() -> None:
    left: list[asyncio.Task[None]] = []

    async def fails() -> None:
        left.append(asyncio.ensure_future(asyncio.sleep(60)))
        await asyncio.sleep(0)
        raise KeyError("mine")

    async def inside() -> None:
        loop.run(fails())

    async def fine() -> int:
        return 3

    with EventLoop() as loop:
        for _ in range(2):
            with pytest.raises(KeyError, match="mine"):
                loop.run(fails())
            assert loop.run(fine()) == 3
        with pytest.raises(KeyError, match="mine"):
            asyncio.run(inside())
    assert all(task.cancelled() for task in left)
    assert len(left) == 3


def test_names_of_requests_are_unequal_whatever_tasks_are_called() -> None:
    class Twice(Question):
        def __init__(self) -> None:
            self.asked = False

        async def step(self, action: Action) -> StepResult:
            first, self.asked = not self.asked, True
            return StepResult("b") if first else StepResult(terminated=True)

    sampler = engine()
    seen = submitted(sampler)
    ids = ["a", "a/0", "a%2F0", "a/0/1", "data/train.jsonl:7", "0"]
    tasks = [Task(name, "bcd") for name in ids]
    sampling = replace(SAMPLING, max_new_tokens=24, stop_token_ids=(EOS, *range(2, 30)))
    found = gather(episodes(engine=sampler, environment=Twice, sampling=sampling), tasks=tasks, tag="1/0/0")
    assert {rollout.turns for scored in found.groups for rollout in scored.group.rollouts} == {2}
    assert len(set(seen)) == len(seen) == 2 * 3 * len(ids)
    assert {"1/0/0/a/0/1", "1/0/0/a%2F0/1", "1/0/0/a%252F0/1", "1/0/0/data/train.jsonl:7/2/1", "1/0/0/0/0"} <= set(seen)


def test_a_prompt_that_does_not_fit_is_named_and_nothing_stays_queued() -> None:
    how = episodes()
    long = Task("train.jsonl:9", "a" * 78)
    with pytest.raises(InputError, match=r"train.jsonl:9.* 78 tokens"):
        gather(how, tasks=[*TASKS, long])
    assert how.engine.in_flight == 0  # type: ignore[attr-defined]


def test_a_busy_engine_a_task_given_twice_and_an_empty_group_are_refused() -> None:
    sampler = engine()
    with pytest.raises(InputError, match=r"data\[1\]' stands twice"):
        gather(tasks=[*TASKS, TASKS[1]])
    with pytest.raises(InputError, match="group_size must be at least 1, not 0"):
        gather(group_size=0)
    sampler.submit([Request("other", (2,), SAMPLING)])
    with pytest.raises(RunError, match="1 other requests"):
        gather(episodes(engine=sampler))
    assert sampler.in_flight == 1


def test_a_factory_that_raises_is_named() -> None:
    def forbidden() -> Question:
        raise OSError("no such game")

    with pytest.raises(RunError, match=r"environment .*forbidden cannot be made for task data\[0\]: OSError: no such"):
        gather(episodes(environment=forbidden))


# ---------------------------------------------------------------------------------------------------- rewards


class Graded(Question):
    """A question that grades its answers itself: 1 for those of an even number of tokens."""

    name = "graded"

    async def step(self, action: Action) -> StepResult:
        return StepResult(reward=float(len(action.token_ids) % 2 == 0), terminated=True)


def test_what_the_environment_gave_comes_before_what_rewards_gave() -> None:
    rewards = Rewards(lambda task, rollout: float(task.columns["place"]))
    found = gather(episodes(environment=Graded), rewards=rewards)
    finished = 0
    for scored in found.groups:
        for rollout, events in zip(scored.group.rollouts, scored.events, strict=True):
            mine = RewardEvent("mine", float(rollout.task.columns["place"]))
            own = RewardEvent("graded", float(rollout.length % 2 == 0), token=rollout.length - 1)
            assert events == ((own, mine) if rollout.terminated else (mine,))
            finished += rollout.terminated
    assert 0 < finished < 18
    alone = gather(episodes(environment=Graded))
    assert [[e[:1] if e[:1] != e[-1:] else () for e in scored.events] for scored in found.groups] == [
        list(scored.events) for scored in alone.groups
    ]


def test_an_answer_that_a_reward_failed_on_earns_nothing_of_its_environment_either() -> None:
    rewards = Rewards(lambda task, rollout: "fail" if rollout.length % 3 == 0 else 1.0)
    found = gather(episodes(environment=Graded), rewards=rewards)
    lengths = [[rollout.length for rollout in scored.group.rollouts] for scored in found.groups]
    failed = [length for row in lengths for length in row if length % 3 == 0]
    assert failed
    assert found.failures == {"mine": len(failed)}
    assert found.messages == {"mine": "it failed"}
    for row, scored in zip(lengths, found.groups, strict=True):
        assert [not events for events in scored.events] == [length % 3 == 0 for length in row]


def test_an_episode_that_failed_earns_nothing() -> None:
    class Fails(Graded):
        async def step(self, action: Action) -> StepResult:
            return StepResult("more", 1.0) if action.text else StepResult(7)  # type: ignore[arg-type]

    how = episodes(environment=Fails, limits=rollouts.Limits(on_environment_error="skip"))
    found = gather(how, group_size=6)
    pairs = [pair for scored in found.groups for pair in zip(scored.group.rollouts, scored.events, strict=True)]
    assert any(rollout.failed and rollout.events for rollout, _ in pairs)
    failed = sum(rollout.failed for rollout, _ in pairs)
    assert Collected((), found.groups, 0, 1).failed == failed
    assert all(events == (() if rollout.failed else rollout.events) for rollout, events in pairs)


@pytest.mark.parametrize("call", ["group", "batch"])
def test_rewards_are_called_for_each_group_or_once_for_all(call: str) -> None:
    rewards = Rewards(lambda task, rollout: rollout.length / 8, call)
    state = TrainerState(global_step=4)
    found = gather(rewards=rewards, state=state)
    names = [task.id for task in TASKS]
    assert rewards.calls == ([(names, state)] if call == "batch" else [([name], state) for name in names])
    assert [scored.returns for scored in found.groups] == [
        tuple(rollout.length / 8 for rollout in scored.group.rollouts) for scored in found.groups
    ]


# ---------------------------------------------------------------------------------------------------- the source


def source(rewards: Rewards | None, how: Episodes | None = None, *, size: int = 6, **changes: Any) -> Source:
    order = RowOrder(size, seed=0, shuffle=False)
    arguments = {"groups": 4, "group_size": 2, "max_attempts": 3, **changes}
    return Source(how or episodes(), TASKS[:size], order, rewards, **arguments)


def even(group: ScoredGroup) -> bool:
    return group.group.task.columns["place"] % 2 == 0


def names(groups: Sequence[ScoredGroup]) -> list[str]:
    return [group.group.task.id[5] for group in groups]


PLACE = Rewards(lambda task, rollout: float(task.columns["place"]))


def submitted(sampler: HFEngine) -> list[str]:
    """The names of the requests that the engine will be asked for, filled as they come."""
    seen: list[str] = []
    submit = sampler.submit

    def noted(requests: Any) -> None:
        asked = list(requests)
        seen.extend(request.id for request in asked)
        submit(asked)

    sampler.submit = noted  # type: ignore[method-assign]
    return seen


def test_without_filters_a_batch_is_what_comes_next() -> None:
    sampler = engine()
    seen = submitted(sampler)
    one = source(PLACE, episodes(engine=sampler))
    first, second = one.collect(1), one.collect(2)
    assert (names(first.kept), names(second.kept)) == (list("0123"), list("4501"))
    assert first.sampled == first.kept
    assert (first.attempts, first.failures, first.nothing_left) == (1, 0, None)
    expected = [f"1/0/0/data[{i}]/{k}" for i in (0, 1, 2, 3) for k in (0, 1)]
    assert seen == expected + [f"2/0/0/data[{i}]/{k}" for i in (4, 5, 0, 1) for k in (0, 1)]


def test_what_filters_drop_is_sampled_anew_in_the_order_in_which_groups_are_begun() -> None:
    sampler = engine()
    seen = submitted(sampler)
    found = source(PLACE, episodes(engine=sampler), filters=(even,), max_attempts=4).collect(3)
    assert names(found.kept) == list("0240")
    assert names(found.sampled) == list("01234501")[:7]
    assert found.attempts == 3
    rounds = [(0, [0, 1, 2, 3]), (1, [4, 5]), (2, [0])]
    assert seen == [f"3/{r}/0/data[{i}]/{k}" for r, places in rounds for i in places for k in (0, 1)]


def test_attempts_end_and_an_empty_batch_says_why() -> None:
    found = source(PLACE, filters=(lambda group: False,), max_attempts=2, name="dapo").collect(1)
    assert (found.kept, len(found.sampled), found.attempts) == ((), 8, 2)
    assert found.nothing_left == "dapo kept none of 8 groups in 2 rounds: nothing to learn from"
    short = source(PLACE, filters=(even,), max_attempts=1).collect(1)
    assert (names(short.kept), short.nothing_left) == (list("02"), None)


def test_a_task_that_comes_twice_is_sampled_in_another_wave() -> None:
    sampler = engine()
    seen = submitted(sampler)
    found = source(PLACE, episodes(engine=sampler), size=3).collect(1)
    assert names(found.kept) == list("0120")
    assert seen[-2:] == ["1/0/1/data[0]/0", "1/0/1/data[0]/1"]
    first, again = found.kept[0].group.rollouts[0], found.kept[3].group.rollouts[0]
    assert not np.array_equal(first.segments[0].token_ids, again.segments[0].token_ids)


def test_a_greedy_baseline_is_the_return_of_the_greedy_answer() -> None:
    sampler = engine()
    seen = submitted(sampler)
    rewards = Rewards(lambda task, rollout: float(rollout.segments[0].token_ids.sum()))
    found = source(rewards, episodes(engine=sampler), filters=(even,), greedy_baseline=True).collect(1)
    greedy = gather(tasks=TASKS[:1], group_size=1, how=episodes(sampling=replace(SAMPLING, temperature=0.0)))
    tokens = greedy.groups[0].group.rollouts[0].segments[0].token_ids
    assert found.kept[0].baseline == float(tokens.sum())
    assert seen[8:10] == ["1/0/0/greedy/data[0]/0", "1/0/0/greedy/data[2]/0"]


def test_failures_are_counted_and_a_step_without_any_reward_stops() -> None:
    rewards = Rewards(lambda task, rollout: "fail" if task.columns["place"] else 1.0)
    assert source(rewards).collect(1).failures == 6
    for nothing in (Rewards(lambda task, rollout: None), None):
        with pytest.raises(RunError, match="step 5: none of 8 episodes has a reward"):
            source(nothing).collect(5)
    graded = source(None, episodes(environment=Graded)).collect(1)
    assert {value for group in graded.kept for value in group.returns} == {0.0, 1.0, None}


def test_a_source_goes_on_where_its_state_was_taken() -> None:
    one = source(PLACE, filters=(even,))
    one.collect(1)
    state = one.state_dict()
    other = source(PLACE, filters=(even,))
    other.load_state_dict(state)
    expected: Collected = one.collect(2)
    assert other.collect(2) == expected
    with pytest.raises(InputError, match="6 items"):
        source(PLACE, size=3).load_state_dict(state)


def test_time_is_measured_while_answers_are_sampled_and_while_only_rewards_are_at_work() -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def phases(name: str) -> Any:
        seen.append(f"{name} begins")
        yield
        seen.append(f"{name} ends")

    gather(rewards=PLACE, phases=phases)
    assert seen == ["rollout begins", "rollout ends", "reward begins", "reward ends"]


def test_sources_need_no_torch_to_be_imported() -> None:
    code = "import sys, reinlm.rollouts; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_package_offers_the_engine_and_names_what_it_lacks() -> None:
    assert rollouts.HFEngine is HFEngine
    with pytest.raises(AttributeError, match=r"reinlm\.rollouts.*'VllmEngine'"):
        _ = rollouts.VllmEngine
