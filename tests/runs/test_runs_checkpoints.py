from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from reinlm.errors import InputError
from reinlm.runs.checkpoints import Checkpoints, linked_folder, load_state, load_step


def write_weights(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "weights.bin").write_bytes(b"w" * 1000)


def save(checkpoints: Checkpoints, step: int, metric: float | None = None) -> Path:
    return checkpoints.save(
        step, write_weights, {"step": step, "adam": {0: torch.full((2,), float(step))}}, metric=metric
    )


def flip_last_byte(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_checkpoint_gives_back_the_state_that_was_saved(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    path = save(checkpoints, 7)
    assert path.name == "step_7"
    assert load_step(path) == 7
    state = load_state(path)
    assert state["step"] == 7
    assert state["adam"][0].tolist() == [7.0, 7.0]
    assert (path / "sub" / "weights.bin").read_bytes() == b"w" * 1000


def test_the_last_ones_and_the_best_are_kept_and_linked(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=2, keep_best="max")
    for step, metric in [(1, 0.5), (2, 0.9), (3, 0.9), (4, float("nan")), (5, None), (6, 0.1)]:
        save(checkpoints, step, metric)
    assert names(tmp_path) == {"step_2", "step_5", "step_6", "last", "best"}
    assert os.readlink(tmp_path / "last") == "step_6"
    assert os.readlink(tmp_path / "best") == "step_2"
    assert load_step(tmp_path / "best") == 2


def test_the_smallest_metric_is_best_where_asked_for_and_survives_a_restart(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path, keep_last=1, keep_best="min"), 1, 0.2)
    checkpoints = Checkpoints(tmp_path, keep_last=1, keep_best="min")
    save(checkpoints, 2, 0.3)
    save(checkpoints, 3, 0.4)
    assert names(tmp_path) == {"step_1", "step_3", "last", "best"}
    assert checkpoints.best() == tmp_path / "step_1"


def test_no_best_is_kept_where_none_is_asked_for(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1, keep_best=None)
    save(checkpoints, 1, 1.0)
    save(checkpoints, 2, 0.0)
    assert names(tmp_path) == {"step_2", "last"}
    assert checkpoints.best() is None


def test_at_least_one_is_kept() -> None:
    with pytest.raises(InputError, match="keep_last must be 1 or more, not 0"):
        Checkpoints(Path("x"), keep_last=0)


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, write_weights, {"value": "old"})
    checkpoints.save(1, write_weights, {"value": "new"})
    assert load_state(tmp_path / "step_1") == {"value": "new"}
    assert names(tmp_path) == {"step_1", "last"}


def test_a_failed_write_leaves_the_earlier_checkpoint_alone(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)

    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoints.save(2, fail, {})
    assert checkpoints.newest() == tmp_path / "step_1"
    save(checkpoints, 2)
    assert not (tmp_path / "step_2" / "half").exists()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: (path / "sub" / "weights.bin").write_bytes(b"w"), "sub/weights.bin is missing or cut short"),
        (lambda path: (path / "trainer_state.json").unlink(), "trainer_state.json is missing or cut short"),
        (lambda path: (path / "checkpoint.json").write_text('{"ver'), "it has no readable checkpoint.json"),
        (lambda path: (path / "checkpoint.json").write_text("[]"), "it has no readable checkpoint.json"),
        (
            lambda path: (path / "trainer_state.json").write_bytes(b"?" * (path / "trainer_state.json").stat().st_size),
            "trainer_state.json is damaged",
        ),
        (
            lambda path: (path / "sub" / "weights.bin").write_bytes(b"w" * 999 + b"v"),
            "sub/weights.bin is damaged: its bytes are not those that were written",
        ),
        (
            lambda path: flip_last_byte(path / "trainer_state.safetensors"),
            "trainer_state.safetensors is damaged: its bytes are not those that were written",
        ),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_and_cleared_by_the_next(tmp_path: Path, damage, reason: str) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    save(checkpoints, 2, 0.1)
    kept = Checkpoints(tmp_path, keep_last=2)
    save(kept, 10, 0.9)
    damage(tmp_path / "step_10")
    with pytest.warns(UserWarning, match=rf"step_10 is passed over: {reason}"):
        assert checkpoints.newest() == tmp_path / "step_2"
    save(checkpoints, 3, 0.0)
    assert names(tmp_path) == {"step_2", "step_3", "last", "best"}
    assert os.readlink(tmp_path / "best") == "step_2"


def test_a_checkpoint_of_an_earlier_version_has_no_digests_and_is_read(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    path = save(checkpoints, 2)
    manifest = json.loads((path / "checkpoint.json").read_text())
    assert manifest["sha256"].keys() == manifest["files"].keys()
    del manifest["sha256"]
    (path / "checkpoint.json").write_text(json.dumps(manifest))
    assert checkpoints.newest() == path


def test_a_damaged_checkpoint_is_never_the_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=3)
    save(checkpoints, 1, 0.9)
    save(checkpoints, 2, 0.5)
    (tmp_path / "step_1" / "trainer_state.json").unlink()
    assert checkpoints.best() == tmp_path / "step_2"


def test_there_is_no_newest_before_the_first(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path).newest() is None


def test_what_an_interrupted_save_left_is_cleared_or_put_back(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1)
    save(Checkpoints(tmp_path), 2)
    (tmp_path / "step_2").rename(tmp_path / ".old-step_2")  # killed between the two renames of a replacement
    (tmp_path / ".old-step_1").mkdir()  # killed before the replaced one was removed
    (tmp_path / ".tmp-step_2").mkdir()
    (tmp_path / ".tmp-last").symlink_to("step_2")
    assert Checkpoints(tmp_path).newest() == tmp_path / "step_2"
    assert names(tmp_path) == {"step_1", "step_2", "last"}


def test_a_left_over_temporary_link_is_replaced(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    (tmp_path / ".tmp-last").symlink_to("nowhere")
    save(checkpoints, 1)
    assert os.readlink(tmp_path / "last") == "step_1"


def test_where_links_cannot_be_made_a_file_names_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "symlink", refuse)
    save(Checkpoints(tmp_path), 1)
    assert (tmp_path / "last").read_text() == "step_1\n"
    assert linked_folder(tmp_path / "last") == tmp_path / "step_1"
    assert load_step(tmp_path / "last") == 1


def test_what_is_no_checkpoint_or_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a checkpoint"):
        load_state(tmp_path)
    with pytest.raises(InputError, match="is not a checkpoint"):
        load_step(tmp_path)
    path = save(Checkpoints(tmp_path), 1)
    manifest = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps(manifest | {"version": 99}))
    with pytest.raises(InputError, match="step_1 has checkpoint version 99, not 2"):
        load_state(path)


def test_transformers_loads_the_model_beside_the_trainer_state(tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=4, vocab_size=5, n_positions=8))
    path = Checkpoints(tmp_path).save(1, model.save_pretrained, {"x": torch.ones(3)})
    loaded: Any = AutoModelForCausalLM.from_pretrained(path)
    assert torch.equal(loaded.transformer.wte.weight, model.transformer.wte.weight)


SAVER = """
import os, sys, torch
from pathlib import Path
from reinlm.runs.checkpoints import Checkpoints, load_step

def write(folder):
    for index in range(20):
        (folder / f"shard_{index}").write_bytes(bytes([step % 256]) * 50_000)

for line in sys.stdin:  # a process a line, without loading torch anew each time
    if os.fork() == 0:
        checkpoints = Checkpoints(Path(sys.argv[1]), keep_last=1, keep_best="max")
        newest = checkpoints.newest()
        step = load_step(newest) if newest else 0
        while True:
            step += 1
            checkpoints.save(step, write, {"x": torch.full((1000,), float(step))}, metric=-float(step % 3))
            print(os.getpid(), step, flush=True)
    os.wait()
    print("ended", 0, flush=True)
"""


def test_a_kill_at_any_moment_leaves_the_newest_checkpoint_whole(tmp_path: Path) -> None:
    moments = random.Random(0)
    server = subprocess.Popen(
        [sys.executable, "-c", SAVER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin
    assert server.stdout
    for _ in range(10):
        server.stdin.write("go\n")
        server.stdin.flush()
        process, reported = map(int, server.stdout.readline().split())
        time.sleep(moments.uniform(0.0, 0.05))
        os.kill(process, signal.SIGKILL)
        while (line := server.stdout.readline().split())[0] != "ended":
            reported = int(line[1])
        newest = Checkpoints(tmp_path).newest()
        assert newest
        step = load_step(newest)
        assert step >= reported
        assert load_state(newest)["x"].tolist() == [float(step)] * 1000
        assert all((newest / f"shard_{index}").read_bytes() == bytes([step % 256]) * 50_000 for index in range(20))
        assert load_step(tmp_path / "last") in (step, step - 1)
        assert load_step(tmp_path / "best") >= 1
    server.communicate()
    assert server.returncode == 0
