"""A learner under fully_shard on two processes computes what one process does, and its checkpoint resumes in one."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.no_cover

WORKER = Path(__file__).with_name("sharded_worker.py")
JUDGED = Path(__file__).with_name("sharded_judged_worker.py")


def run(
    name: str, folder: Path, ranks: int, checkpoint: Path | None = None, worker: Path = WORKER
) -> list[dict[str, Any]]:
    """The results of every process. One alone computes in this process, which need not start."""
    folder.mkdir()
    if ranks == 1:
        importlib.import_module(worker.stem).main(
            name, str(folder), 0, 1, "", *([str(checkpoint)] if checkpoint else [])
        )
        return [torch.load(folder / "result0.pt", weights_only=True)]
    rendezvous = f"file://{folder / 'rendezvous'}"
    command = [sys.executable, str(worker), name, str(folder)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), rendezvous],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=200)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folder / f"result{rank}.pt", weights_only=True) for rank in range(ranks)]


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for mine, theirs in zip(one["metrics"], other["metrics"], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9, abs=1e-9)
    for mine, theirs in zip([*one["gradients"], one["weights"]], [*other["gradients"], other["weights"]], strict=True):
        assert mine.keys() == theirs.keys()
        for name, values in mine.items():
            torch.testing.assert_close(values, theirs[name], rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("name", [pytest.param("grpo", marks=pytest.mark.slow), "ppo"])  # ppo has all of grpo's models
def test_two_sharded_processes_are_one_and_their_checkpoint_resumes_in_one(tmp_path: Path, name: str) -> None:
    (alone,) = run(name, tmp_path / "one", 1)
    first, second = run(name, tmp_path / "two", 2)
    assert sum(first["passes"]) > sum(second["passes"]) > 0  # ragged: the second process ran out earlier
    assert 0 in second["passes"]  # and in one step it had no scored token at all
    assert any(float(gradient.abs().max()) > 1e-3 for gradient in alone["gradients"][-1].values())
    assert_same(alone, first)
    assert_same(alone, second)
    (resumed,) = run(name, tmp_path / "resumed", 1, checkpoint=tmp_path / "two")
    last = {**alone, "metrics": alone["metrics"][2:], "gradients": alone["gradients"][-len(resumed["gradients"]) :]}
    assert_same(last, resumed)


def test_two_sharded_processes_learn_from_judged_answers_as_one_does(tmp_path: Path) -> None:
    (alone,) = run("dpo,reward", tmp_path / "one", 1, worker=JUDGED)
    first, second = run("dpo,reward", tmp_path / "two", 2, worker=JUDGED)
    assert sum(first["passes"]) > sum(second["passes"]) > 0  # of an odd number of micro-batches the second has one less
    assert len(alone["gradients"]) == 4  # two steps of dpo, two of a reward model
    for gradients in alone["gradients"]:
        assert any(float(gradient.abs().max()) > 1e-3 for gradient in gradients.values())
    assert_same(alone, first)
    assert_same(alone, second)
