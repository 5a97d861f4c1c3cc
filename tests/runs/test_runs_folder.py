from __future__ import annotations

import errno
import fcntl
import gc
import json
import math
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from reinlm.config import parse_yaml
from reinlm.errors import InputError
from reinlm.runs import folder as of_folders
from reinlm.runs.checkpoints import Checkpoints
from reinlm.runs.folder import RunFolder, read_run

CONFIG = {"steps": 10, "rollout": {"group_size": 8}, "run": {"path": "x"}, "hub_token": "hf_secret", "lr": "1e-6"}


def create(path: Path, config: dict[str, Any] = CONFIG, *, kind: str = "rl", **options: Any) -> RunFolder:
    return RunFolder.create(path, kind=kind, config=config, command=["reinlm", "rl", "--prompt", "2 + 2"], **options)


def refusal(path: Path, config: dict[str, Any] = CONFIG, **options: Any) -> InputError:
    before = sorted(path.rglob("*")) if path.is_dir() else None
    with pytest.raises(InputError) as raised:
        create(path, config, **options)
    assert (sorted(path.rglob("*")) if path.is_dir() else None) == before, "a refusal touches nothing"
    assert "\n" not in raised.value.message
    return raised.value


def test_a_new_folder_says_what_ran_and_holds_no_secret(tmp_path: Path) -> None:
    config = CONFIG | {"clip": math.inf, "sets": (1, 2), "file": Path("a.jsonl")}
    with create(tmp_path / "deep" / "run", config) as run:
        assert not run.resumed
    text = (run.path / "config.yaml").read_text()
    assert text.startswith("# reinlm rl, schema version 1")
    assert "hf_secret" not in text
    expected = CONFIG | {"hub_token": "***", "clip": math.inf, "sets": [1, 2], "file": "a.jsonl"}
    assert parse_yaml(text, "config.yaml") == expected
    saved = read_run(run.path)
    assert saved["kind"] == "rl"
    assert saved["schema_version"] == 1
    assert saved["command"] == "reinlm rl --prompt '2 + 2'"
    assert saved["resumed"] == []
    assert saved["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"reinlm", "torch", "transformers"} <= saved["versions"].keys()


def test_a_run_is_not_written_over_without_being_asked(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    error = refusal(tmp_path / "run")
    assert error.message == f"run folder {tmp_path / 'run'} exists"
    assert "--resume" in str(error.hint)
    assert "--overwrite" in str(error.hint)


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    create(tmp_path).close()
    assert read_run(tmp_path)["kind"] == "rl"


def test_overwrite_clears_a_run_whole(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    run = create(tmp_path / "run")
    (run.checkpoints / "step_1").mkdir(parents=True)
    (run.checkpoints / "last").symlink_to("step_1")
    (run.path / "data").symlink_to(outside)
    run.close()
    create(tmp_path / "run", {"steps": 3}, kind="sft", overwrite=True).close()
    assert {path.name for path in run.path.iterdir()} == {"config.yaml", "run.json", ".lock"}
    assert read_run(run.path)["kind"] == "sft"
    assert (outside / "kept").exists()


@pytest.mark.parametrize(
    ("ended", "steps", "file", "replaced"),
    [
        ("failed", 0, None, True),
        ("failed", 1, None, False),
        ("interrupted", 0, None, False),
        ("failed", 0, "checkpoints/step_0/model.txt", False),
        ("failed", 0, "my notes.txt", False),
    ],
)
def test_a_run_that_failed_before_its_first_step_is_replaced(
    tmp_path: Path, ended: str, steps: int, file: str | None, replaced: bool
) -> None:
    with create(tmp_path / "run") as run:
        run.write_summary({"ended": ended, "steps": steps})
        run.checkpoints.mkdir()
    if file is not None:
        (run.path / file).parent.mkdir(exist_ok=True)
        (run.path / file).write_text("x")
    if not replaced:
        assert "--overwrite" in str(refusal(run.path).hint)
        return
    with create(run.path, {"steps": 3}) as again:
        assert {child.name for child in again.path.iterdir()} == {".lock", "run.json", "config.yaml"}
        assert again.read_config() == {"steps": 3}


def test_overwrite_spares_what_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    assert "is not a run folder and not empty" in refusal(tmp_path, overwrite=True).message
    assert refusal(tmp_path).message == f"folder {tmp_path} exists"


def test_a_place_that_cannot_hold_a_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    assert refusal(file).message == f"{file} is a file, not a folder"
    assert refusal(file / "run").message == f"{file / 'run'} cannot be made: {file} is a file"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert (
        refusal(tmp_path / "a" / "b").message
        == f"{tmp_path / 'a' / 'b'} cannot be written: no permission in {tmp_path}"
    )


def test_resume_goes_on_and_notes_it(tmp_path: Path) -> None:
    create(tmp_path).close()
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with create(tmp_path, resume=True) as run:
        assert run.resumed
    assert (tmp_path / "metrics.jsonl").exists()
    saved = read_run(tmp_path)
    assert saved["command"] == "reinlm rl --prompt '2 + 2'"
    assert [start["command"] for start in saved["resumed"]] == ["reinlm rl --prompt '2 + 2'"]


def test_resume_with_a_changed_configuration_says_what_differs(tmp_path: Path) -> None:
    create(tmp_path).close()
    changed = CONFIG | {"rollout": {"group_size": 16}, "steps": 20}
    message = refusal(tmp_path, changed, resume=True).message
    assert message.endswith("changed configuration: rollout.group_size: 8 -> 16 (and 1 more: steps: 10 -> 20)")
    assert refusal(tmp_path, changed, resume=True, may_change=["steps"]).message.endswith("rollout.group_size: 8 -> 16")


def test_keys_that_may_change_do_and_are_written_down(tmp_path: Path) -> None:
    create(tmp_path).close()
    create(tmp_path, CONFIG | {"steps": 20, "run": {"path": "y"}}, resume=True, may_change=["steps", "run"]).close()
    assert parse_yaml((tmp_path / "config.yaml").read_text(), "")["steps"] == 20
    assert "steps_: 1" in refusal(
        tmp_path, CONFIG | {"steps": 20, "steps_": 1}, resume=True, may_change=["steps", "run"]
    ).message.replace("None -> ", "")


def test_resume_needs_a_run_of_the_same_kind_and_schema(tmp_path: Path) -> None:
    error = refusal(tmp_path / "none", resume=True)
    assert error.message == f"nothing to resume: {tmp_path / 'none'} is not a run folder"
    run = create(tmp_path / "run")
    run.close()
    assert refusal(run.path, resume=True, kind="sft").message == f"{run.path} holds a run of kind 'rl', not 'sft'"
    assert "exclude each other" in refusal(run.path, resume=True, overwrite=True).message
    saved = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps(saved | {"schema_version": 99}))
    assert refusal(run.path, resume=True).message == f"{run.path} has schema version 99; this reinlm reads version 1"


def test_a_start_that_was_killed_half_way_can_be_overwritten(tmp_path: Path) -> None:
    create(tmp_path).close()
    (tmp_path / "config.yaml").unlink()
    assert refusal(tmp_path, resume=True).message == f"nothing to resume: {tmp_path} has no config.yaml"
    create(tmp_path, overwrite=True).close()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_folder_without_a_readable_run_file_is_no_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match="is not a run folder"):
        read_run(tmp_path)


HOLDER = """
import os, sys, time
from reinlm.runs.checkpoints import Checkpoints
from reinlm.runs.folder import RunFolder
run = RunFolder.create(sys.argv[1], kind="rl", config={}, command="x")
os.fork()
print("held", flush=True)
time.sleep(60)
"""


def test_two_processes_never_write_one_run_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout
    try:
        for _ in ("the process", "its child, which has let go of the lock by then"):
            assert process.stdout.readline() == "held\n"
        for options in ({"resume": True}, {"overwrite": True}):
            message = refusal(tmp_path, {}, **options).message
            assert message == f"{tmp_path} is being written by another process ({process.pid})"
        process.kill()  # its forked child lives on, as a reward worker may
        process.wait()
        create(tmp_path, {}, resume=True).close()
    finally:
        os.killpg(process.pid, 9)
        process.stdout.close()


def test_a_folder_is_free_again_once_closed_or_collected(tmp_path: Path) -> None:
    run: RunFolder | None = create(tmp_path)
    assert run is not None
    busy = f"{tmp_path} is being written by another run of this process"
    assert refusal(tmp_path, resume=True).message == busy
    with pytest.raises(InputError, match="another run of this process"):  # also before a model is loaded
        RunFolder.check(tmp_path, kind="rl", config=CONFIG, resume=True)
    run.close()
    run = create(tmp_path, resume=True)
    run.close()
    other = create(tmp_path, resume=True)
    run.close()  # closing twice leaves the lock of another run alone
    assert refusal(tmp_path, resume=True).message == busy
    other.close()
    run = create(tmp_path, resume=True)
    run = None
    gc.collect()
    create(tmp_path, resume=True).close()


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("trainer_state.json", "{}", "is missing or cut short"),
        ("trainer_state.json", "????", "trainer_state.json is damaged: JSONDecodeError"),
        ("trainer_state.safetensors", "????", "trainer_state.safetensors is damaged"),
        ("checkpoint.json", "{", "it has no readable checkpoint.json"),
        ("checkpoint.json", '{"version": 2, "step": 1, "files": []}', "it has no readable checkpoint.json"),
    ],
)
def test_a_run_without_a_readable_checkpoint_does_not_start_again(
    name: str, text: str, reason: str, tmp_path: Path
) -> None:
    with create(tmp_path) as run:
        checkpoints = Checkpoints(run.checkpoints)
        damaged = [checkpoints.save(step, lambda folder: None, {"x": torch.zeros(step)}) for step in (1, 2)]
    for path in damaged:
        size = (path / name).stat().st_size
        (path / name).write_text("?" * size if text == "????" else text)
    error = refusal(tmp_path, resume=True)
    assert error.message.startswith(f"no checkpoint in {tmp_path / 'checkpoints'} can be read (step_2: ")
    assert error.message.count(reason) == 2
    assert "--overwrite" in str(error.hint)


def test_summary_and_samples_are_strict_json(tmp_path: Path) -> None:
    run = create(tmp_path)
    assert json.loads(run.write_summary({"accuracy_after": 0.95, "kl": math.nan}).read_text()) == {
        "accuracy_after": 0.95,
        "kl": None,
    }
    sample = {"prompt": "2+2=", "completion": "</script>é", "reward": 1.0, "end": "stop"}
    assert json.loads(run.write_samples(before=[], after=[sample]).read_text()) == {"before": [], "after": [sample]}


def test_a_failed_start_lets_the_folder_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("reinlm.runs.folder.write_json", lambda path, tree: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            create(tmp_path)
    create(tmp_path).close()


def test_a_file_system_without_locks_still_holds_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    create(tmp_path).close()
    create(tmp_path, resume=True).close()


def test_a_package_that_is_absent_has_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "tokenizers":
            raise metadata.PackageNotFoundError(name)
        return "1.2"

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr("reinlm.runs.folder._versions", of_folders._versions.__wrapped__)  # which keeps what it found
    create(tmp_path).close()
    assert set(read_run(tmp_path)["versions"]) == {"reinlm", "python", "torch", "transformers"}
