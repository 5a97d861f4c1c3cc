"""A run with callbacks that have state, killed at random steps and resumed, ends bit for bit as one that was not."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from loop_helpers import Smoothed, logged, rl, sft
from safetensors.torch import load_file

from reinlm.loop import EarlyStopping
from reinlm.runs import load_state, read_metrics

pytestmark = pytest.mark.no_cover

VERBS: dict[str, Callable[..., Any]] = {"sft": sft, "rl": rl}
STEPS = 14
PRELOADED = [
    "reinlm.training.rl",
    "reinlm.training.sft",
    "reinlm.insight.report",
    "transformers.generation.utils",
    "transformers.models.qwen3.modeling_qwen3",
    "torch._dynamo",
]


def run(verb: str, folder: Path, resume: bool) -> None:
    """What each process runs: learning that a callback slows and speeds, draws random numbers for, and never stops."""
    torch.set_num_threads(1)
    callbacks = [Smoothed(), EarlyStopping("mine/mean_loss", patience=STEPS, mode="min")]
    VERBS[verb](folder, callbacks, training={"steps": STEPS}, run={"save_every": 3}, seed=2, resume=resume)


def process(verb: str, folder: Path) -> Any:
    """A process that goes on where the last one was killed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    started = context.Process(target=run, args=(verb, folder, (folder / "run.json").exists()))
    started.start()
    return started


def last_step(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    records = read_metrics(path) if path.is_file() else []
    return records[-1]["step"] if records else -1


@pytest.mark.parametrize("verb", VERBS)
def test_a_killed_run_with_stateful_callbacks_ends_bit_identical(verb: str, tmp_path: Path) -> None:
    whole, killed, noise = tmp_path / "whole", tmp_path / "killed", random.Random(verb)
    run(verb, whole, False)
    kills = sorted(noise.sample(range(1, STEPS - 1), 3))
    for step in kills:
        going = process(verb, killed)
        while last_step(killed) < step:
            assert going.is_alive(), f"ended by itself with {going.exitcode}"
            time.sleep(0.001)
        time.sleep(noise.uniform(0, 0.02))
        going.kill()
        going.join()
        assert going.exitcode == -9
    going = process(verb, killed)
    going.join()
    assert going.exitcode == 0
    assert len(logged(whole)) == STEPS
    assert logged(killed) == logged(whole)
    assert "mine/noise" in logged(whole)[-1]
    ours, theirs = (load_state(folder / "checkpoints" / "last") for folder in (killed, whole))
    assert ours["callbacks"].keys() == {"Smoothed", "EarlyStopping(mine/mean_loss)"}
    assert ours["callbacks"]["Smoothed"]["mean"] == theirs["callbacks"]["Smoothed"]["mean"]
    assert torch.equal(ours["callbacks"]["Smoothed"]["history"], theirs["callbacks"]["Smoothed"]["history"])
    assert len(ours["callbacks"]["Smoothed"]["history"]) == STEPS
    assert ours["callbacks"]["EarlyStopping(mine/mean_loss)"] == theirs["callbacks"]["EarlyStopping(mine/mean_loss)"]
    weights = [load_file(folder / "checkpoints" / "last" / "model.safetensors") for folder in (killed, whole)]
    assert all(torch.equal(weights[0][name], value) for name, value in weights[1].items())


def test_what_a_tracker_draws_when_it_opens_is_none_of_the_run_s(tmp_path: Path) -> None:
    from reinlm.loop import Callback

    class Draws(Callback):
        def on_run_started(self, event: Any, control: Any) -> None:
            random.random()
            torch.rand(event.done + 1)

    sft(tmp_path / "plain", [Smoothed()], seed=2)
    sft(tmp_path / "drawing", [Smoothed(), Draws()], seed=2)
    assert logged(tmp_path / "drawing") == logged(tmp_path / "plain")
