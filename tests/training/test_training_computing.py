"""Threads and matrix products of a run are written down, and taken from there when the run is resumed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from training_helpers import metrics, pair, run_rl, run_sft, tiny_policy

from reinlm.config import read_recipe
from reinlm.errors import InputError
from reinlm.models.measured import forget_measurements, machine, measurements_file
from reinlm.models.threads import using_threads
from reinlm.training.computing import Computing

LARGE: dict[str, Any] = {"hidden_size": 256, "layers": 1, "heads": 2}


@pytest.fixture(autouse=True)
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What was measured on this machine, to be set by name."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measurements_file().parent.mkdir()

    class Written(dict[str, Any]):
        def __setitem__(self, name: str, value: Any) -> None:
            super().__setitem__(name, value)
            measurements_file().write_text(json.dumps({machine(): self}))
            forget_measurements()

    yield Written()
    forget_measurements()


def test_it_is_measured_once_written_down_and_kept_on_resume(tmp_path: Path, measured: dict[str, Any]) -> None:
    training = {"steps": 2, "minibatches": 1}
    measured["matmul"] = "onednn"
    with torch.profiler.profile() as profile:
        run_rl(tmp_path / "whole", model=pair(tiny_policy(**LARGE)), training=training)
    assert "mkldnn::_linear_pointwise" in {event.name for event in profile.events()}
    assert read_recipe(tmp_path / "whole" / "config.yaml")["resolved"]["matmul"] == "onednn"
    run_rl(tmp_path / "cut", model=pair(tiny_policy(**LARGE)), training={**training, "steps": 1})
    measured["matmul"] = "blas"
    run_rl(tmp_path / "cut", model=pair(tiny_policy(**LARGE)), training=training, resume=True)
    assert read_recipe(tmp_path / "cut" / "config.yaml")["resolved"]["matmul"] == "onednn"
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


def test_sft_takes_what_is_faster(tmp_path: Path, measured: dict[str, Any]) -> None:
    for name in ("blas", "onednn"):
        measured["matmul"] = name
        with torch.profiler.profile() as profile:
            run_sft(tmp_path / name, model=pair(tiny_policy(**LARGE)), training={"steps": 1, "batch_size": 4})
        used = "mkldnn::_linear_pointwise" in {event.name for event in profile.events()}
        assert used == (name == "onednn")
        assert read_recipe(tmp_path / name / "config.yaml")["resolved"]["matmul"] == name


def test_the_threads_are_written_down_and_kept_on_resume(
    tmp_path: Path, measured: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    seen: list[int] = []

    def reward(completions: list[str], **_: object) -> list[float]:
        seen.append(torch.get_num_threads())
        return [float(len(text) % 3) for text in completions]

    training = {"steps": 1, "minibatches": 1}
    with using_threads(2):
        measured["threads"] = 2
        run_rl(tmp_path / "run", model=pair(tiny_policy(**LARGE)), reward=reward, training=training)
        assert read_recipe(tmp_path / "run" / "config.yaml")["resolved"]["threads"] == 2
        assert seen[-1] == 2
        measured["threads"] = 1
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
        ({"matmul": None}, "resolved.matmul in config.yaml is None"),
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


def test_the_start_says_how_many_threads_compute() -> None:
    model = tiny_policy(**LARGE).model
    with using_threads(2):
        assert Computing(2, "blas").line(model) == "2 threads"
        assert str(measurements_file()) in str(Computing(1, "blas").line(model))
        assert Computing(1, "blas").line(tiny_policy().model) is None
    with using_threads(1):
        assert Computing(1, "blas").line(model) is None


@pytest.mark.parametrize("resolved", ["3", "[1]", "{threads: 0}", "{matmul: fast}"])
def test_a_config_that_was_edited_to_nonsense_is_refused_in_one_line(resolved: str, tmp_path: Path) -> None:
    run_rl(tmp_path / "run", training={"steps": 1, "minibatches": 1})
    file = tmp_path / "run" / "config.yaml"
    file.write_text(re.sub(r"(?m)^resolved:\n(  .*\n)+", f"resolved: {resolved}\n", file.read_text()))
    with pytest.raises(InputError, match=r"resolved[.a-z]* in config.yaml is"):
        run_rl(tmp_path / "run", training={"steps": 2, "minibatches": 1}, resume=True)


@pytest.mark.parametrize(
    ("native", "autocast", "noted"), [(False, "bfloat16", True), (True, "bfloat16", False), (False, "auto", False)]
)
def test_bfloat16_without_instructions_for_it_is_noted(
    native: bool, autocast: str, noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reinlm.training.base_session.has_bfloat16", lambda: native)
    run = run_sft(tmp_path / "run", training={"steps": 1, "batch_size": 2, "autocast": autocast})
    notes = json.loads((run.folder / "run.json").read_text()).get("notes", [])
    assert any("no instructions for bfloat16" in note for note in notes) == noted
