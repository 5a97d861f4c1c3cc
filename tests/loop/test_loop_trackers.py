"""Trackers: what they write, what a resumed run adds, and which are refused."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loop_helpers import ROWS, FakeTask, logged, loop, sft
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import reinlm
from reinlm.config import Config, build, read_recipe
from reinlm.loop import Callback, build_trackers, check_trackers, tracker
from reinlm.loop.trackers import registry
from reinlm.training.sections import RunConfig
from tracker_files import wandb_records

SAMPLES = {0: 0.25, 3: 0.5}


def cut_and_resumed(path: Path, *specs: Any) -> None:
    """Six steps: a first process logs four and fails, and a second goes on from the checkpoint of the second."""
    task = FakeTask(6, SAMPLES, fails_at=5)
    with pytest.raises(OSError, match="gone away"):
        loop(path / "run", task, build_trackers(specs), save_every=2).run()
    (path / "run" / "checkpoints" / "step_4" / "checkpoint.json").unlink()  # as if it was never whole
    with pytest.warns(UserWarning, match="passed over"):
        loop(path / "run", FakeTask(6, SAMPLES), build_trackers(specs), save_every=2, resume=True).run()


# ------------------------------------------------------------------------------------------------ TensorBoard


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path: Path) -> None:
    cut_and_resumed(tmp_path, "tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    shown = [(event.step, event.value) for event in events.Scalars("loss")]
    expected = [(r["step"], r["loss"]) for r in logged(tmp_path / "run") if "loss" in r]
    assert [step for step, _ in shown] == [1, 2, 3, 4, 5, 6]
    assert [value for _, value in shown] == pytest.approx([value for _, value in expected], rel=1e-6)


def test_a_run_that_is_over_opens_no_tensorboard_file(tmp_path: Path) -> None:
    loop(tmp_path / "run", FakeTask(2), build_trackers(["tensorboard"])).run()
    files = sorted((tmp_path / "run" / "tensorboard").iterdir())
    loop(tmp_path / "run", FakeTask(2), build_trackers(["tensorboard"]), resume=True).run()
    assert sorted((tmp_path / "run" / "tensorboard").iterdir()) == files


# ------------------------------------------------------------------------------------------------ Weights & Biases


def history(file: Path) -> list[dict[str, Any]]:
    """Its rows, by name, once the process of W&B has written the end of the run."""
    deadline = time.monotonic() + 30
    while not any(record.WhichOneof("record_type") == "exit" for record in wandb_records(file)):
        assert time.monotonic() < deadline, f"{file} has no end"
        time.sleep(0.1)
    return [
        {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in wandb_records(file)
        if record.WhichOneof("record_type") == "history"
    ]


def test_wandb_writes_metrics_config_and_samples_and_goes_on_in_its_own_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    cut_and_resumed(tmp_path, {"wandb": {"project": "tests", "name": "first", "mode": "offline"}})
    folder = tmp_path / "run"
    files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    identity = json.loads((folder / "trackers" / "wandb.json").read_text())["identity"]
    assert {file.name for file in files} == {f"run-{identity}.wandb"}
    (started,) = [record.run for record in wandb_records(files[0]) if record.WhichOneof("record_type") == "run"]
    config = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert (started.project, started.display_name, started.run_id) == ("tests", "first", identity)
    assert config["seed"] == 5
    assert config["run"] == {"output": None}
    rows = [row for file in files for row in history(file)]
    assert [row["_step"] for row in rows] == [0, 1, 2, 3, 4, 5, 6]
    records = logged(folder)
    for row, record in zip(rows, records, strict=True):
        assert {name: row[name] for name in record if name != "step"} == {
            k: v for k, v in record.items() if k != "step"
        }
    tables = {row["_step"]: row["samples_table.path"] for row in rows if "samples_table.path" in row}
    assert tables.keys() == {0, 3}
    table = json.loads((files[0].parent / "files" / tables[3]).read_text())
    assert table["columns"] == ["prompt", "completion", "reward", "end"]
    assert table["data"] == [["2+2=", "3", 0.5, "stop"]]


def test_wandb_follows_a_real_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    sft(tmp_path / "run", run={"tensorboard": None, "trackers": [{"wandb": {"mode": "offline"}}]})
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    assert [row["loss"] for row in history(file)] == [record["loss"] for record in logged(tmp_path / "run")]
    (started,) = [record.run for record in wandb_records(file) if record.WhichOneof("record_type") == "run"]
    config = {item.key: json.loads(item.value_json) for item in started.config.update}
    assert (started.display_name, config["training"]["batch_size"]) == ("run", 8)


# ------------------------------------------------------------------------------------------------ Trackio


def test_trackio_writes_metrics_config_and_samples_and_goes_on_in_its_own_run(
    tmp_path: Path,
) -> None:
    pytest.importorskip("trackio")
    code = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}; from pathlib import Path\n"
        f"from test_loop_trackers import cut_and_resumed\n"
        f"cut_and_resumed(Path({str(tmp_path)!r}), {{'trackio': {{'project': 'tests'}}}})"
    )
    env = {**os.environ, "TRACKIO_DIR": str(tmp_path / "store")}
    done = subprocess.run([sys.executable, "-c", code], check=True, env=env, stdout=subprocess.PIPE, text=True)
    assert done.stdout == ""  # the console is the run's own
    identity = json.loads((tmp_path / "run" / "trackers" / "trackio.json").read_text())["identity"]
    assert identity.startswith("run-")
    with sqlite3.connect(tmp_path / "store" / "tests.db") as connection:
        rows = connection.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
        configs = connection.execute("SELECT run_name, config FROM configs").fetchall()
    assert {name for name, _, _ in rows} == {identity}
    assert [step for _, step, _ in rows] == [0, 1, 2, 3, 4, 5, 6]
    written = [json.loads(metrics) for _, _, metrics in rows]
    records = logged(tmp_path / "run")
    for row, record in zip(written, records, strict=True):
        assert {name: row[name] for name in record if name != "step"} == {
            k: v for k, v in record.items() if k != "step"
        }
    assert [step for step, row in enumerate(written) if "samples_table" in row] == [0, 3]
    assert json.loads(configs[0][1])["seed"] == 5


# ------------------------------------------------------------------------------------------------ names and settings


class CsvConfig(Config):
    path: str


class CsvTracker(Callback):
    def __init__(self, config: CsvConfig) -> None:
        self.path = Path(config.path)

    def on_logged(self, event: Any, control: Any) -> None:
        with open(self.path, "a") as file:
            file.write(f"{event.step},{event.metrics['loss']!r}\n")


@pytest.fixture
def csv_rows() -> Iterator[None]:
    """A tracker of one's own, known by name during a test."""
    tracker("csv_rows", CsvConfig)(CsvTracker)
    yield
    del registry._KINDS["csv_rows"]


@pytest.mark.usefixtures("csv_rows")
def test_a_user_s_own_tracker_is_available_by_name(tmp_path: Path) -> None:
    sft(tmp_path / "run", run={"tensorboard": None, "trackers": [{"csv_rows": {"path": str(tmp_path / "x.csv")}}]})
    assert (tmp_path / "x.csv").read_text() == "".join(
        f"{record['step']},{record['loss']!r}\n" for record in logged(tmp_path / "run")
    )
    with pytest.raises(reinlm.InputError, match="'csv_rows' is registered already"):
        tracker("csv_rows", CsvConfig)(CsvTracker)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["tensorbord"], r"unknown tracker 'tensorbord' \(did you mean 'tensorboard'"),
        (["wandb", {"wandb": {"mode": "offline"}}], "'wandb' is given twice"),
        ([{"wandb": {"projekt": "x"}}], "unknown key 'projekt'"),
        ([{"wandb": "x"}], "settings of tracker 'wandb' are a mapping"),
        ([{"wandb": {}, "trackio": {}}], "a name or"),
        ("tensorboard", "trackers is a list"),
        ({"wandb": {}}, "trackers is a list"),
    ],
)
def test_trackers_that_cannot_be_used_are_refused(given: Any, complaint: str) -> None:
    with pytest.raises(reinlm.InputError, match=complaint):
        check_trackers(given)


@pytest.mark.parametrize(("name", "extra"), [("wandb", "wandb"), ("trackio", "trackio")])
def test_a_tracker_whose_package_is_missing_is_refused_before_anything_is_loaded(
    name: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(registry, "find_spec", lambda package: None if package == name else found(package))
    with pytest.raises(reinlm.InputError, match=f"tracker '{name}' needs the package {name}") as raised:
        reinlm.sft("no/such/model", ROWS, output=tmp_path / "run", run={"trackers": [name]})
    assert raised.value.hint == f"in the clone of reinlm: pip install '.[{extra}]'"
    assert not (tmp_path / "run").exists()


def test_wandb_without_a_key_is_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "no_netrc"))
    with pytest.raises(reinlm.InputError, match="tracker 'wandb' has no API key") as raised:
        reinlm.sft("no/such/model", ROWS, output=tmp_path / "run", run={"trackers": ["wandb"]})
    assert "WANDB_API_KEY" in str(raised.value.hint)
    assert len(build_trackers([{"wandb": {"mode": "offline"}}])) == 1
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert len(build_trackers(["wandb"])) == 1
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert len(build_trackers(["wandb"])) == 1


def test_trackers_are_imported_when_they_are_used() -> None:
    code = "import sys, reinlm.loop; sys.exit(bool({'wandb', 'trackio', 'torch', 'tensorboard'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({}, ["tensorboard"]),
        ({"tensorboard": True}, ["tensorboard"]),
        ({"tensorboard": False}, []),
        ({"trackers": []}, []),
        ({"trackers": ["tensorboard"], "tensorboard": True}, [{"tensorboard": {}}]),
        (
            {"trackers": ["trackio"], "tensorboard": False},
            [{"trackio": {"project": "reinlm", "name": None, "group": None, "space_id": None}}],
        ),
    ],
)
def test_tensorboard_true_and_false_stand_for_trackers(given: Any, chosen: list[Any]) -> None:
    config = build(RunConfig, given)
    assert config.chosen_trackers == chosen
    assert build(RunConfig, config.model_dump()) == config


@pytest.mark.parametrize(
    "given", [{"trackers": ["tensorboard"], "tensorboard": False}, {"trackers": [], "tensorboard": True}]
)
def test_tensorboard_that_contradicts_trackers_is_refused(given: Any) -> None:
    with pytest.raises(reinlm.InputError, match="contradicts trackers"):
        build(RunConfig, given)


def test_the_resolved_trackers_stand_in_the_configuration_and_may_change_on_resume(tmp_path: Path) -> None:
    sft(tmp_path / "run", run={"tensorboard": None, "trackers": ["tensorboard"]})
    assert read_recipe(tmp_path / "run" / "config.yaml")["run"]["trackers"] == [{"tensorboard": {}}]
    sft(tmp_path / "run", run={"tensorboard": None, "trackers": []}, resume=True)
    assert math.isfinite(logged(tmp_path / "run")[-1]["loss"])
