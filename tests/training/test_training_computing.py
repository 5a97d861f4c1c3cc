"""Threads and matrix products of a run are written down, and taken from there when the run is resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from training_helpers import metrics, pair, run_rl, run_sft, tiny_policy

from reinlm.config import read_recipe
from reinlm.errors import InputError
from reinlm.models import matmul
from reinlm.models.threads import using_threads
from reinlm.training.computing import Computing

LARGE: dict[str, Any] = {"hidden_size": 256, "layers": 1, "heads": 2}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Measurements of this machine, to be set by name."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = matmul.cache_folder() / "measured.json"
    file.parent.mkdir()

    class Written(dict[str, str]):
        def __setitem__(self, name: str, value: str) -> None:
            super().__setitem__(name, value)
            file.write_text(json.dumps({matmul._machine(): self}))
            matmul._of_machine.cache_clear()

    yield Written()
    matmul._of_machine.cache_clear()


def test_it_is_measured_once_written_down_and_kept_on_resume(tmp_path: Path, machine: dict[str, str]) -> None:
    training = {"steps": 2, "minibatches": 1}
    machine["matmul"] = "onednn"
    with torch.profiler.profile() as profile:
        run_rl(tmp_path / "whole", model=pair(tiny_policy(**LARGE)), training=training)
    assert "mkldnn::_linear_pointwise" in {event.name for event in profile.events()}
    assert read_recipe(tmp_path / "whole" / "config.yaml")["resolved"]["matmul"] == "onednn"
    run_rl(tmp_path / "cut", model=pair(tiny_policy(**LARGE)), training={**training, "steps": 1})
    machine["matmul"] = "blas"
    run_rl(tmp_path / "cut", model=pair(tiny_policy(**LARGE)), training=training, resume=True)
    assert read_recipe(tmp_path / "cut" / "config.yaml")["resolved"]["matmul"] == "onednn"
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


def test_sft_takes_what_is_faster(tmp_path: Path, machine: dict[str, str]) -> None:
    for name in ("blas", "onednn"):
        machine["matmul"] = name
        with torch.profiler.profile() as profile:
            run_sft(tmp_path / name, model=pair(tiny_policy(**LARGE)), training={"steps": 1, "batch_size": 4})
        used = "mkldnn::_linear_pointwise" in {event.name for event in profile.events()}
        assert used == (name == "onednn")
        assert read_recipe(tmp_path / name / "config.yaml")["resolved"]["matmul"] == name


def test_the_threads_are_written_down_and_kept_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("reinlm.models.threads.gain_of_threads", lambda _: 2.0)
    seen: list[int] = []

    def reward(completions: list[str], **_: object) -> list[float]:
        seen.append(torch.get_num_threads())
        return [float(len(text) % 3) for text in completions]

    training = {"steps": 1, "minibatches": 1}
    with using_threads(2):
        run_rl(tmp_path / "run", model=pair(tiny_policy(**LARGE)), reward=reward, training=training)
        assert read_recipe(tmp_path / "run" / "config.yaml")["resolved"]["threads"] == 2
        assert seen[-1] == 2
        monkeypatch.setattr("reinlm.models.threads.gain_of_threads", lambda _: 0.5)
        training["steps"] = 2
        run_rl(tmp_path / "run", model=pair(tiny_policy(**LARGE)), reward=reward, training=training, resume=True)
        assert seen[-1] == 2
        run_rl(tmp_path / "other", model=pair(tiny_policy(**LARGE)), reward=reward, training=training)
        assert torch.get_num_threads() == 2
    assert read_recipe(tmp_path / "run" / "config.yaml")["resolved"]["threads"] == 2
    assert read_recipe(tmp_path / "other" / "config.yaml")["resolved"]["threads"] == 1
    assert seen[-1] == 1


@pytest.mark.parametrize(
    ("resolved", "said"),
    [
        ({"matmul": "fast"}, r"resolved.matmul in config.yaml is 'fast' \(allowed: blas, onednn\)"),
        ({"threads": 0}, "resolved.threads in config.yaml is 0"),
        ({"threads": "2"}, "resolved.threads in config.yaml is '2'"),
        ({"threads": True}, "resolved.threads in config.yaml is True"),
    ],
)
def test_values_that_no_run_writes_are_refused(resolved: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Computing.as_begun(resolved, tiny_policy().model, print)


def test_what_this_machine_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    notes: list[str] = []
    with using_threads(2):
        found = Computing.as_begun({"threads": 3, "matmul": "onednn"}, tiny_policy().model, notes.append)
    assert found == Computing(2, "blas")
    assert ["oneDNN" in notes[0], "3 threads, and torch has 2" in notes[1]] == [True, True]
    assert Computing.as_begun({}, tiny_policy().model, notes.append).matmul == "blas"  # runs of before were the BLAS's
    assert len(notes) == 2
