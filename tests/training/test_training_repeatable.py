"""Runs that are repeated, and runs that go on, have the same bits; what a run cannot go on from is refused by name."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from turns import LETTERS, LINES, TASKS, killed_in_step, options, play

import reinlm
from reinlm.config import build, read_recipe
from reinlm.data import DataConfig
from reinlm.errors import InputError
from reinlm.runs.checkpoints import MANIFEST
from reinlm.training.config import RLConfig, SFTConfig
from reinlm.training.dumping import dump
from reinlm.training.text import TextConfig
from tiny_runs import metrics, run_rl, tiny, trainer, weights


def same(first: Any, second: Any, steps: range = range(1, 4)) -> None:
    """Metrics, weights, and every token's columns in the rollout log, bit for bit."""
    assert metrics(first.folder) == metrics(second.folder)
    ended = weights(second.policy.model)
    assert all(torch.equal(ended[name], value) for name, value in weights(first.policy.model).items())
    for step in steps:
        ours, theirs = (load_file(run.folder / f"rollouts/step_{step}.safetensors") for run in (first, second))
        assert ours.keys() == theirs.keys()
        assert all(ours[name].tobytes() == values.tobytes() for name, values in theirs.items())


@pytest.mark.parametrize("level", [0, 1])
def test_what_environments_tools_and_rewards_take_in_time_changes_no_bit(level: int, tmp_path: Path) -> None:
    rollout = {**options()["rollout"], "async_level": level}
    first, second = (play(tmp_path / name, rollout=rollout) for name in ("first", "second"))
    same(first, second)
    rows = metrics(first.folder)
    assert [row["staleness/max"] for row in rows] == [0.0, 2.0 * level, 2.0 * level]
    assert max(row["episodes/mean_turns"] for row in rows) > 1.5
    assert {"rewards/letters/mean", "rewards/asked/mean", "rewards/short/mean"} <= set().union(*rows)
    columns = load_file(first.folder / "rollouts/step_3.safetensors")
    apart = float(np.abs(columns["column/rollout_logprobs"] - columns["update/old_logprobs"]).max())
    assert apart > 1e-3 if level else apart < 1e-5


def test_a_run_of_several_turns_that_is_killed_within_an_episode_goes_on_to_the_same_end(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=killed_in_step, args=(tmp_path / "killed", 3, 10))
    process.start()
    straight = play(tmp_path / "straight", run={"save_every": 1, "rollouts_every": 1})
    process.join()
    assert process.exitcode == -9
    assert [row["step"] for row in metrics(tmp_path / "killed")] == [1, 2]
    again = play(tmp_path / "killed", resume=True, run={"save_every": 1, "rollouts_every": 1})
    same(straight, again)


# ---------------------------------------------------------------------------------------------------- what is refused


def test_a_run_does_not_resume_with_another_chat_template(tmp_path: Path) -> None:
    def made(template: str, **more: Any) -> Any:
        model = tiny(alphabet=LETTERS, chat_template=template)
        return reinlm.RLTrainer(model, TASKS, output=tmp_path / "run", quiet=True, **options(), **more)

    with made(LINES) as first:
        first.step()
    with pytest.raises(InputError, match=r"renderer.*template_sha256"):
        made(LINES.replace("a:", "b:"), resume=True)
    with made(LINES, resume=True) as again:
        again.step()
    assert [row["step"] for row in metrics(tmp_path / "run")] == [1, 2]


def test_a_checkpoint_of_an_earlier_version_is_refused_by_its_number(tmp_path: Path) -> None:
    with trainer(tmp_path / "run") as first:
        first.step()
    manifest = tmp_path / "run/checkpoints/step_1" / MANIFEST
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(told | {"version": 1}))
    with pytest.raises(InputError, match=rf"checkpoint version 1, not {told['version']}.*reinlm that wrote it"):
        trainer(tmp_path / "run", resume=True)


# ---------------------------------------------------------------------------------------------------- config.yaml


@pytest.mark.parametrize("kind", [SFTConfig, RLConfig])
def test_a_configuration_that_is_written_out_in_full_reads_back_as_itself(kind: Any) -> None:
    config = build(kind, {"model": "m", "data": "d"})
    assert build(kind, dump(config)) == config
    sgd = build(kind, {"model": "m", "data": "d", "optimizer": {"name": "sgd", "options": {"momentum": 0.5}}})
    assert build(kind, dump(sgd)) == sgd


def test_so_does_the_text_of_a_run() -> None:
    config = build(RLConfig, {"model": "m", "data": "d", "text": {"data": "t"}})
    assert config.text == TextConfig(data=DataConfig(path="t"))
    assert build(RLConfig, dump(config)) == config


def test_a_run_resumes_from_what_its_folder_says(tmp_path: Path) -> None:
    """As `reinlm rl --resume --output FOLDER` does: nothing else is given but what a file cannot hold."""
    from tiny_runs import ROWS, graded, local

    straight = run_rl(tmp_path / "straight", training={"steps": 3})
    with trainer(tmp_path / "run", training={"steps": 3}) as first:
        first.step()
    assert read_recipe(tmp_path / "run/config.yaml")["optimizer"]["name"] == "sgd"
    again = reinlm.rl(tiny(), ROWS, reward=local(graded), output=tmp_path / "run", resume=True, quiet=True)
    assert metrics(again.folder) == metrics(straight.folder)
