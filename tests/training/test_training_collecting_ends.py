"""How a run that samples one step ahead ends, fails, is interrupted and goes on."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import reinlm
from reinlm.data import DataConfig, RowOrder, build_renderer, load_tasks
from reinlm.environments import Action, StepResult
from reinlm.errors import RunError
from reinlm.loop.interrupts import Interrupted
from reinlm.rewards import build_rewards
from reinlm.rollouts import Episodes, HFEngine, Sampling, Source
from reinlm.runs.state import pack_state, unpack_state
from reinlm.training.sampled_batch import SampledBatch
from tiny_runs import ROWS, graded, metrics, run_rl, settings, tiny, weights

AHEAD: dict[str, Any] = {"async_level": 1}
GRPO: dict[str, Any] = {"base": "grpo", "kl": None}
LOGGED: dict[str, Any] = {"rollouts_every": 1}
SHORT_TURNS: dict[str, Any] = {"stop_strings": list("0123456789+=")}
"""A turn is a character."""


def no_sampling_is_left() -> bool:
    return not any(thread.name.startswith("sampling") for thread in threading.enumerate())


def same_runs(first: Path, second: Path) -> None:
    """Metrics, and every file of answers, bit for bit."""
    assert metrics(first) == metrics(second)
    for file in sorted((first / "rollouts").iterdir()):
        assert file.read_bytes() == (second / "rollouts" / file.name).read_bytes(), file.name


# ------------------------------------------------------------------------------------------------ how it ends


def test_nothing_is_sampled_after_the_last_step(tmp_path: Path) -> None:
    calls: list[int] = []

    def counted(completions: list[str], trainer_state: Any) -> list[float]:
        calls.append(trainer_state.global_step)
        return graded(completions)

    run_rl(tmp_path / "run", reward=counted, algorithm=GRPO, rollout=AHEAD, training={"steps": 3})
    assert calls == [0, 0, 1, 1, 2, 2]
    assert no_sampling_is_left()


AWAY: set[int] = set()
"""Steps whose answers cannot be scored."""


def service(completions: list[str], trainer_state: Any) -> list[float]:
    if trainer_state.global_step in AWAY:
        raise ConnectionError("503")
    return graded(completions)


def test_a_batch_that_cannot_be_sampled_is_an_error_of_its_own_step_and_is_sampled_again_later(tmp_path: Path) -> None:
    def run(folder: Path, **more: Any) -> Any:
        reward = {"functions": service, "time_limit": None, "retries": 0}
        options: dict[str, Any] = {"algorithm": "grpo", "rollout": AHEAD, "training": {"steps": 5}, "run": LOGGED}
        with reinlm.RLTrainer(
            tiny(), ROWS, output=folder, quiet=True, reward=reward, **settings(**options), **more
        ) as made:
            return made.train()

    straight = run(tmp_path / "straight")
    AWAY.add(3)
    try:
        with pytest.raises(RunError, match=r"service.*503") as caught:
            run(tmp_path / "failed")
    finally:
        AWAY.clear()
    assert any("checkpoints/step_3; go on with" in note for note in caught.value.__notes__)
    assert [row["step"] for row in metrics(tmp_path / "failed")] == [1, 2, 3]
    again = run(tmp_path / "failed", resume=True)
    same_runs(tmp_path / "straight", tmp_path / "failed")
    ended = weights(again.policy.model)
    assert all(torch.equal(ended[name], value) for name, value in weights(straight.policy.model).items())


def slow_environment(seconds: float, begun: threading.Event) -> Any:
    """The second batch of episodes takes its time."""
    made: list[int] = []

    class Slow:
        def __init__(self) -> None:
            made.append(1)
            self.slow = len(made) > 8

        def reset(self, task: Any) -> None: ...

        async def step(self, action: Action) -> StepResult:
            if self.slow:
                begun.set()
                await asyncio.sleep(seconds)
            return StepResult(reward={"digits": sum(c.isdigit() for c in action.text)}, terminated=True)

    return Slow


class Act(reinlm.Callback):
    """Does something in the first step, once the next batch is being sampled."""

    def __init__(self, begun: threading.Event, act: Callable[[], None]) -> None:
        self.begun, self.act = begun, act

    def on_batch_prepared(self, event: Any, control: Any) -> None:
        assert self.begun.wait(60)
        self.act()


def test_an_error_in_the_update_ends_the_sampling_beside_it(tmp_path: Path) -> None:
    begun = threading.Event()
    model = tiny()

    def broken() -> None:
        with torch.no_grad():
            model[0].lm_head.weight.mul_(torch.nan)

    started = time.monotonic()
    with pytest.raises(RunError, match="not finite"):
        run_rl(
            tmp_path / "run",
            model,
            reward=None,
            environment=slow_environment(300.0, begun),
            rollout={**AHEAD, **SHORT_TURNS, "environment_time_limit": None},
            algorithm=GRPO,
            training={"steps": 3, "passes": 8},
            callbacks=[Act(begun, broken)],
        )
    assert time.monotonic() - started < 100
    assert no_sampling_is_left()


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_waits_for_the_batch_and_ctrl_c_twice_drops_it(presses: int, tmp_path: Path) -> None:
    begun = threading.Event()

    def press() -> None:
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)

    started = time.monotonic()
    with pytest.raises(Interrupted, match="interrupted after step 1, which is saved" if presses == 1 else "at once"):
        run_rl(
            tmp_path / "run",
            reward=None,
            environment=slow_environment(1.0 if presses == 1 else 300.0, begun),
            rollout={**AHEAD, **SHORT_TURNS, "environment_time_limit": None},
            algorithm=GRPO,
            training={"steps": 3},
            callbacks=[Act(begun, press)],
        )
    assert time.monotonic() - started < 100
    assert no_sampling_is_left()
    state = tmp_path / "run/checkpoints/step_1/trainer_state.json"
    assert state.exists() == (presses == 1)
    if presses == 1:
        held = json.loads(state.read_text())["run"]["next"]
        assert len(held["rows"]) == 8


# ------------------------------------------------------------------------------------------------ checkpoints


def test_a_batch_comes_back_from_its_plain_values_to_the_last_bit() -> None:
    model, tokenizer = tiny()
    tasks = load_tasks(DataConfig(path=ROWS), tokenizer, max_prompt_tokens=None).items
    tasks = tuple(replace(task, columns={**task.columns, "thing": object()}) for task in tasks)  # in no checkpoint
    engine = HFEngine(model, tokenizer, pad_id=tokenizer.pad_token_id)
    sampling = Sampling(max_new_tokens=4, stop_token_ids=(tokenizer.eos_token_id,))
    episodes = Episodes(engine, build_renderer(DataConfig(path=ROWS), tokenizer), sampling, seed=3)
    turn: list[bool] = []

    def alternating(group: Any) -> bool:
        turn.append(not turn or not turn[-1])
        return turn[-1]

    with build_rewards(graded, time_limit=None) as rewards:
        source = Source(
            episodes,
            tasks,
            RowOrder(len(tasks), seed=3),
            rewards,
            groups=3,
            group_size=2,
            max_attempts=3,
            filters=[alternating],
            greedy_baseline=True,
        )
        batch = SampledBatch(source.collect(1), source.order.epochs, sampling)
    assert 3 == len(batch.collected.kept) < len(batch.collected.sampled)
    assert all(group.baseline is not None for group in batch.collected.kept)
    tree, tensors = pack_state(batch.state_dict())
    again = SampledBatch.from_state(unpack_state(json.loads(json.dumps(tree)), tensors), tasks)
    usage = {name: replace(used, seconds=0.0) for name, used in batch.collected.usage.items()}
    assert again == replace(batch, collected=replace(batch.collected, usage=usage))
    assert again.collected.kept[0].group.task is batch.collected.kept[0].group.task


def test_a_finished_run_that_goes_on_says_what_its_next_batch_is_sampled_from(tmp_path: Path, capsys: Any) -> None:
    options: dict[str, Any] = {"algorithm": GRPO, "rollout": AHEAD}
    run_rl(tmp_path / "run", training={"steps": 2}, **options)
    run_rl(tmp_path / "run", training={"steps": 4}, resume=True, quiet=False, **options)
    said = " ".join(capsys.readouterr().err.split())
    assert "step 3 samples from the weights as they are, as no batch was sampled beside step 2" in said
    assert [row["staleness/max"] for row in metrics(tmp_path / "run") if "loss" in row] == [0.0, 1.0, 0.0, 1.0]
