"""Runs that are killed and go on end exactly where an uninterrupted one does."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training_helpers import EVEN, EXAMPLES, HELD_OUT, ROWS, jsonl, metrics, saved_model

from reinlm.config import dump_yaml
from reinlm.runs import read_metrics, without_clocks

pytestmark = pytest.mark.no_cover

Moment = Callable[[Path], bool]


# ------------------------------------------------------------------------------------------------ the driver


def command(words: list[str]) -> None:
    """What a process of its own runs: the command line, on one thread, without a word."""
    from reinlm.cli import main

    torch.set_num_threads(1)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  open until the process ends
    main(words)


PRELOADED = (
    "reinlm.cli",
    "reinlm.training.rl",
    "reinlm.training.sft",
    "reinlm.training.dpo_session",
    "reinlm.training.reward_session",
    "reinlm.insight.report",
    "transformers.generation.utils",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.auto.tokenization_auto",
    "torch.utils.tensorboard",
    "torch._dynamo",
)
"""What a run imports sooner or later, and imports slowly."""


def processes(kind: str) -> Any:
    """ "forkserver" starts quickly, from a server that holds the imports; "spawn" starts a fresh interpreter each time."""
    context = multiprocessing.get_context(kind)
    if kind == "forkserver":
        context.set_forkserver_preload(list(PRELOADED))
    return context


def logged(step: int) -> Moment:
    """Step `step` stands in metrics.jsonl."""

    def reached(folder: Path) -> bool:
        with contextlib.suppress(OSError):
            *lines, _ = (folder / "metrics.jsonl").read_bytes().split(b"\n")  # the last may be half written
            return bool(lines) and json.loads(lines[-1])["step"] >= step
        return False

    return reached


def saving(step: int) -> Moment:
    """A checkpoint of `step` or later is half-written."""

    def reached(folder: Path) -> bool:
        names = [path.name for path in (folder / "checkpoints").glob(".tmp-step_*")]
        return any(int(name.rpartition("_")[2]) >= step for name in names)

    return reached


def started(folder: Path) -> bool:
    """The folder is made, and nothing is in it yet that could be resumed from."""
    return (folder / "run.json").exists()


class Killer:
    """Starts a run, kills it at a moment and a random while later, and starts it again until it ends by itself."""

    def __init__(self, kind: str, words: list[str], folder: Path, seed: int, jitter: float) -> None:
        self.context = processes(kind)
        self.words = words
        self.folder = folder
        self.noise = random.Random(seed)
        self.jitter = jitter
        self.killed: list[str] = []
        """What lay in `checkpoints/` at each kill."""

    def kill_at(self, moment: Moment, *, at_once: bool = False) -> None:
        """Start or resume the run and kill it; raises where it ends before that."""
        process = self._start()
        while not moment(self.folder):
            assert process.is_alive(), f"the run ended by itself with {process.exitcode}"
            time.sleep(0.0005)
        if not at_once:
            time.sleep(self.noise.uniform(0.0, self.jitter))
        process.kill()
        process.join()
        assert process.exitcode == -9, "the run was over before it was killed"
        self.killed.append(" ".join(sorted(path.name for path in (self.folder / "checkpoints").glob("*step_*"))))

    def finish(self) -> None:
        process = self._start()
        process.join()
        assert process.exitcode == 0

    def _start(self) -> Any:
        resumable = (self.folder / "run.json").exists()
        options = ["--resume"] if resumable else self.words[1:]
        process = self.context.Process(
            target=command, args=([self.words[0], *options, "--output", str(self.folder), "--quiet"],)
        )
        process.start()
        return process


@pytest.fixture
def tasks(tmp_path: Path) -> dict[str, list[str]]:
    """The command lines of runs of each verb, one of rl sampling ahead, whose every part leaves a trace in the state."""
    model = str(saved_model(tmp_path / "model"))
    held_out = {"data": {"small": str(jsonl(tmp_path / "held_out.jsonl", HELD_OUT))}, "every": 3, "max_new_tokens": 4}
    shared: dict[str, Any] = {"model": model, "run": {"save_every": 2, "keep_last": 2}, "seed": 3}
    noisy = saved_model(tmp_path / "noisy", family="gpt2")
    config = json.loads((noisy / "config.json").read_text())
    (noisy / "config.json").write_text(json.dumps(config | {"resid_pdrop": 0.1}))  # draws from torch's random state
    sft = shared | {
        "model": str(noisy),
        "data": str(jsonl(tmp_path / "examples.jsonl", EXAMPLES)),
        "reward": "exact_match",
        "evaluation": held_out,
        "training": {"steps": 30, "batch_size": 8},
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 4},
    }
    rl = shared | {
        "run": {**shared["run"], "rollouts_every": 3},
        "data": str(jsonl(tmp_path / "train.jsonl", ROWS)),
        "reward": {"functions": [EVEN, {"name": "exact_match", "weight": 2.0}], "time_limit": None},
        "algorithm": {"base": "grpo", "filters": ["mixed_outcomes"], "shapers": [{"soft_overlong": {"cache": 2}}]},
        "rollout": {"group_size": 4, "batch_size": 16, "max_new_tokens": 4},
        "training": {"steps": 24, "minibatches": 2},
        "evaluation": held_out,
        "optimizer": {"learning_rate": 2e-3, "schedule": "cosine"},
    }
    ahead = {**rl, "rollout": {**rl["rollout"], "async_level": 1}}
    rft = {
        **sft,
        "data": rl["data"],
        "reward": {"functions": [EVEN, {"name": "exact_match", "weight": 2.0}], "time_limit": None},
        "iterations": 4,
        "start": "base",
        "keep": {"above": [0.5, 1.5], "per_prompt": 2},
        "hint": "{answer}+{prompt}",
        "rollout": {"group_size": 4, "batch_size": 16, "max_new_tokens": 4},
        "training": {"steps": 3, "batch_size": 8},
    }
    judged = {name: sft[name] for name in ("model", "run", "seed", "optimizer")}
    pairs = [{"prompt": row["prompt"], "chosen": row["answer"], "rejected": f"{row['answer']}="} for row in ROWS]
    rated = [
        {"prompt": row["prompt"], "completion": str(n % 7), "ratings": {"true": n % 3, "short": n % 2}}
        for n, row in enumerate(ROWS)
    ]
    every = {"every": 3}
    dpo = judged | {
        "data": str(jsonl(tmp_path / "pairs.jsonl", pairs)),
        "evaluation": every | {"data": {"held": str(jsonl(tmp_path / "held_pairs.jsonl", pairs[:7]))}},
        "training": {"steps": 16, "batch_size": 8, "dropout": True, "reference_cache": str(tmp_path / "cache")},
    }
    reward = judged | {
        "data": str(jsonl(tmp_path / "rated.jsonl", rated)),
        "evaluation": every | {"data": {"held": str(jsonl(tmp_path / "held_rated.jsonl", rated[:7]))}},
        "training": {"steps": 16, "batch_size": 8, "length": "term"},
        "head": {"members": 2, "spread_penalty": 0.5, "dropout": 0.1, "weights": {"true": 1.0, "short": 0.5}},
    }
    recipes = {"sft": sft, "rl": rl, "ahead": ahead, "rft": rft, "dpo": dpo, "reward": reward}
    words = {}
    for name, recipe in recipes.items():
        verb = "rl" if name == "ahead" else name
        (tmp_path / f"{name}.yaml").write_text(dump_yaml(recipe), encoding="utf-8")
        words[name] = [verb, str(tmp_path / f"{name}.yaml")]
    return words


# ------------------------------------------------------------------------------------------------ what must agree


def assert_same_run(interrupted: Path, whole: Path) -> None:
    assert metrics(interrupted) == metrics(whole)
    assert _names(interrupted / "checkpoints") == _names(whole / "checkpoints")
    for checkpoint in sorted((whole / "checkpoints").glob("step_*")):
        _assert_same_checkpoint(interrupted / "checkpoints" / checkpoint.name, checkpoint)
    assert os.readlink(interrupted / "checkpoints" / "best") == os.readlink(whole / "checkpoints" / "best")
    for folder in ("rollouts", "samples", "samples.json"):
        assert _contents(interrupted / folder) == _contents(whole / folder)
    assert _summary(interrupted) == _summary(whole)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _contents(path: Path) -> dict[str, bytes]:
    """By name the files of a folder, or the file itself; nothing where there is none."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in files
        if file.is_file() and not file.name.endswith(".state.json")
    }


def _assert_same_checkpoint(found: Path, expected: Path) -> None:
    assert _names(found) == _names(expected)
    for name in (file.name for file in expected.glob("*.safetensors")):
        ours, theirs = load_file(found / name), load_file(expected / name)
        assert ours.keys() == theirs.keys()
        for key, tensor in theirs.items():
            assert torch.equal(ours[key], tensor), f"{expected.name}/{name}: {key}"
    ours, theirs = (json.loads((folder / "trainer_state.json").read_text()) for folder in (found, expected))
    assert ours["loop"].pop("seconds") > 0
    assert theirs["loop"].pop("seconds") > 0
    assert ours == theirs
    manifests = [json.loads((folder / "checkpoint.json").read_text()) for folder in (found, expected)]
    assert manifests[0]["metric"] == manifests[1]["metric"]


def _summary(folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / "summary.json").read_text())
    for key in ("train_seconds", "samples_per_second", "checkpoint"):
        summary.pop(key, None)
    summary["after"] = without_clocks(summary["after"])
    summary["before"] = without_clocks(summary["before"])
    return summary


def whole_run(words: list[str], folder: Path) -> Path:
    """The uninterrupted run, in a process like the interrupted one's: the checks of types in this one draw random numbers."""
    Killer("forkserver", words, folder, seed=0, jitter=0.0).finish()
    return folder


# ------------------------------------------------------------------------------------------------ tests


SLOW = pytest.mark.slow  # kinds whose kills the slow test of twenty has too


@pytest.mark.parametrize(
    "kind", ["sft", "rl", pytest.param("ahead", marks=SLOW), pytest.param("rft", marks=SLOW), "dpo", "reward"]
)
def test_a_run_killed_twice_ends_as_the_uninterrupted_one(kind: str, tasks: Any, tmp_path: Path) -> None:
    whole = whole_run(tasks[kind], tmp_path / "whole")
    killer = Killer("forkserver", tasks[kind], tmp_path / "killed", seed=1, jitter=0.05)
    killer.kill_at(logged(1), at_once=True)
    killer.kill_at(saving(8), at_once=True)
    killer.finish()
    assert ".tmp-step_" in killer.killed[1]
    assert_same_run(tmp_path / "killed", whole)
    assert len(json.loads((tmp_path / "killed" / "run.json").read_text())["resumed"]) == 2


def _moments(last: int, noise: random.Random) -> Iterator[tuple[Moment, bool]]:
    """Twenty: two before the first checkpoint, every third in the middle of one, the others wherever chance has it."""
    yield started, False
    yield logged(0), False
    for number in range(18):
        step = 2 + number * (last - 4) // 18
        yield (saving(step), True) if number % 3 == 0 else (logged(step + noise.randrange(2)), False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "last"), [("sft", 30), ("rl", 24), ("ahead", 24), ("rft", 24), ("dpo", 16), ("reward", 16)]
)
def test_a_run_killed_twenty_times_ends_as_the_uninterrupted_one(
    kind: str, last: int, tasks: Any, tmp_path: Path
) -> None:
    whole = whole_run(tasks[kind], tmp_path / "whole")
    steps = [record["step_time"] for record in read_metrics(whole / "metrics.jsonl") if "step_time" in record]
    killer = Killer("spawn", tasks[kind], tmp_path / "killed", seed=2, jitter=3 * sum(steps) / len(steps))
    for moment, at_once in _moments(last, random.Random(4)):
        killer.kill_at(moment, at_once=at_once)
    killer.finish()
    assert len(killer.killed) == 20
    assert sum(".tmp-step_" in names for names in killer.killed) >= 3
    assert_same_run(tmp_path / "killed", whole)
