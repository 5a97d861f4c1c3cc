from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from reinlm.records import RewardEvent, Rollout, RolloutGroup, ScoredGroup, Segment, Task
from reinlm.runs.files import stamped_folder, write_json_lines
from reinlm.runs.metrics import numbered, read_lines
from reinlm.runs.schema import RolloutLog


def test_rows_are_strict_json_whatever_they_hold(tmp_path: Path) -> None:
    row = {"prompt": "2+2=", "reward": math.nan, "lone": "\ud800", "ids": np.array([1, 2]), "score": np.float32(0.5)}
    write_json_lines(tmp_path / "rows.jsonl", [row, {"reward": -math.inf}])
    assert read_lines(tmp_path / "rows.jsonl") == [
        (1, {"prompt": "2+2=", "reward": None, "lone": "\ud800", "ids": [1, 2], "score": 0.5}),
        (2, {"reward": None}),
    ]


def test_rollouts_after_the_checkpoint_are_removed(tmp_path: Path) -> None:
    task = Task("a:1", ({"role": "user", "content": "2+2=", "weight": np.float32(math.nan)},))
    rollout = Rollout(task, (Segment(np.array([1, 2]), np.array([-1, 0])),), "\ud800", True, False, "stop")
    group = ScoredGroup(RolloutGroup(task, (rollout,)), ((RewardEvent("math", 1.0),),))
    log = RolloutLog(tmp_path)
    for step in (1, 2, 10):
        log.write(step, [group], {})
    RolloutLog(tmp_path, after_step=2)
    assert [step for step, _ in numbered(tmp_path / "rollouts", ".jsonl")] == [1, 2]
    assert [step for step, _ in numbered(tmp_path / "rollouts", ".safetensors")] == [1, 2]
    ((_, row),) = read_lines(tmp_path / "rollouts" / "step_2.jsonl")
    assert row["completion"] == "\ud800"
    assert row["reward"] == 1.0
    assert row["prompt"] == [{"role": "user", "content": "2+2=", "weight": None}]


def test_folders_of_runs_that_begin_in_one_second_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "20260102-030405")
    for name in ("runs/rl-20260102-030405", "runs/rl-20260102-030405-2", "runs/rl-20260102-030405-3"):
        assert stamped_folder("rl") == Path(name)
        Path(name).mkdir(parents=True)
    assert stamped_folder("sft") == Path("runs/sft-20260102-030405")
