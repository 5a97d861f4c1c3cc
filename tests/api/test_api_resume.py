"""A run that is resumed from another directory, with objects given again, and with settings that were changed."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import reinlm
from reinlm.config import dump_yaml, read_recipe
from tiny_runs import ROWS, graded, local, metrics, saved, settings, tiny, trainer, weights

MINE = """
from pathlib import Path

from reinlm.environments import StepResult
from reinlm.schedules import schedule


@schedule("halved_in_a_test")
def halved(done):
    return 1.0 - 0.5 * done


class Once:
    def reset(self, task):
        return None

    def step(self, action):
        return StepResult(reward=0.25, terminated=True)


def digits(completions):
    bonus = float(Path("bonus.txt").read_text())  # relative to the directory of the run
    return [sum(c.isdigit() for c in text) + bonus for text in completions]
"""
RELATIVE: dict[str, Any] = {
    "model": "model",
    "data": "d.jsonl",
    "imports": "mine.py",
    "reward": ["mine.py:digits"],
    "environment": "mine.py:Once",
    "evaluation": {"data": "held_out.jsonl", "max_new_tokens": 4},
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with all files that the settings name by relative paths."""
    folder = tmp_path / "project"
    folder.mkdir()
    saved(folder / "model")
    for name, rows in (("d", ROWS), ("held_out", ROWS[:3])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "mine.py").write_text(MINE)
    (folder / "bonus.txt").write_text("0.5")
    monkeypatch.chdir(folder)
    return folder


def test_a_run_finds_its_files_when_it_is_resumed_from_another_directory(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reinlm.schedules import SCHEDULES

    how = settings(training={"steps": 4}, run={"save_every": 2}, optimizer={"schedule": "halved_in_a_test"}) | RELATIVE
    options: dict[str, Any] = {"quiet": True}
    whole = reinlm.RLTrainer(**how, **options, output="whole")
    whole.train()
    with reinlm.RLTrainer(**how, **options, output="run") as cut:
        cut.step()
        cut.step()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resumed = reinlm.RLTrainer(output="../project/run", resume=True, **options)
    assert Path.cwd() == tmp_path / "elsewhere"
    resumed.train()
    SCHEDULES.pop("halved_in_a_test")
    assert metrics(project / "run") == metrics(project / "whole")
    after = weights(whole.policy.model)
    assert all(torch.equal(after[name], value) for name, value in weights(resumed.policy.model).items())
    config = read_recipe(project / "run" / "config.yaml")
    assert config["resolved"]["directory"] == str(project)
    assert config["data"]["path"] == "d.jsonl"
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_function_that_no_file_names_is_asked_for_when_its_run_is_resumed(tmp_path: Path) -> None:
    saved(tmp_path / "model")
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def inner(completions: list[str]) -> list[float]:
        return graded(completions)

    with trainer(tmp_path / "run", str(tmp_path / "model"), str(tmp_path / "d.jsonl"), inner) as begun:
        begun.step()
    with pytest.raises(reinlm.InputError, match=r"reward\.functions was given in Python .*inner") as caught:
        reinlm.rl(output=tmp_path / "run", resume=True, quiet=True)
    assert "reward=…" in str(caught.value.hint)
    assert reinlm.rl(output=tmp_path / "run", resume=True, quiet=True, reward=inner).summary["steps"] == 2


def test_a_model_given_in_python_is_asked_for_when_its_run_is_resumed(tmp_path: Path) -> None:
    with trainer(tmp_path / "run") as begun:
        begun.step()
    with pytest.raises(reinlm.InputError, match=r"model\.path was given in Python"):
        reinlm.rl(output=tmp_path / "run", resume=True, quiet=True, reward=local(graded))
    resumed = reinlm.rl(tiny(), ROWS, output=tmp_path / "run", resume=True, quiet=True, reward=local(graded))
    assert resumed.summary["steps"] == 2


def test_a_run_of_a_loaded_model_resumes_from_its_checkpoint_alone_where_no_loss_needs_the_start(
    tmp_path: Path,
) -> None:
    """Bit for bit in float64, though the folder that the model was loaded from holds other weights."""
    model, tokenizer = tiny()
    model.config._name_or_path = saved(tmp_path / "chat", seed=9)
    how: dict[str, Any] = {"training": {"steps": 4}, "run": {"save_every": 2}} | {
        "algorithm": {"base": "ppo", "kl": None}  # its critic begins as a copy of the model
    }
    start = copy.deepcopy(model)
    whole = trainer(tmp_path / "whole", (start, tokenizer), **how)
    whole.train()
    with trainer(tmp_path / "run", (model, tokenizer), **how) as cut:
        cut.step()
        cut.step()
    path = read_recipe(tmp_path / "run" / "config.yaml")["model"]["path"]
    assert path == f"<Qwen3ForCausalLM given in Python, loaded from {tmp_path / 'chat'}>"
    resumed = reinlm.RLTrainer(output=tmp_path / "run", resume=True, quiet=True, reward=local(graded))
    resumed.train()
    after = weights(whole.policy.model)
    assert all(torch.equal(after[name], value) for name, value in weights(resumed.policy.model).items())
    assert read_recipe(tmp_path / "run" / "config.yaml")["model"]["path"] == path
    with pytest.raises(reinlm.InputError, match=r"model\.path was given in Python .*loaded from"):
        reinlm.rl(recipe=tmp_path / "run" / "config.yaml", output=tmp_path / "again", quiet=True, reward=local(graded))


def test_a_loaded_model_is_asked_for_where_its_checkpoint_is_not_enough(tmp_path: Path) -> None:
    folder = saved(tmp_path / "chat")
    model, tokenizer = tiny()
    model.config._name_or_path = folder
    for name, how in (("kl", {}), ("none", {"algorithm": "dr_grpo", "run": {"save_every": 0}})):
        with trainer(tmp_path / name, (copy.deepcopy(model), tokenizer), **how) as begun:
            begun.step()
    shutil.rmtree(tmp_path / "none" / "checkpoints")
    for name, why in (("kl", "the KL of grpo is measured from it as it was"), ("none", "has no checkpoint")):
        with pytest.raises(reinlm.InputError, match=why) as caught:
            reinlm.rl(output=tmp_path / name, resume=True, quiet=True, reward=local(graded))
        assert "model=…" in str(caught.value.hint)
    with pytest.raises(
        reinlm.InputError, match="weights differ"
    ):  # the folder is read in float32, this run began in float64
        reinlm.rl(folder, output=tmp_path / "kl", resume=True, quiet=True, reward=local(graded))
    again = (copy.deepcopy(model), tokenizer)
    assert reinlm.rl(again, output=tmp_path / "kl", resume=True, quiet=True, reward=local(graded)).summary["steps"] == 2


def test_a_run_from_before_a_section_existed_is_resumed_and_a_changed_setting_is_told_with_both_values(
    tmp_path: Path,
) -> None:
    model = tiny()
    sft: dict[str, Any] = {"quiet": True, "run": {"tensorboard": False}, "training": {"steps": 2, "batch_size": 4}}
    examples = [{"prompt": row["prompt"], "completion": row["answer"]} for row in ROWS]
    with reinlm.SFTTrainer(model, examples, output=tmp_path / "run", **sft) as begun:
        begun.step()
    file = tmp_path / "run" / "config.yaml"
    old = read_recipe(file)
    assert old.pop("environment") == "question"
    del old["rollout"], old["evaluation"]["samples"]
    file.write_text(dump_yaml(old))
    with pytest.raises(reinlm.InputError, match=r"changed configuration: training\.batch_size: 4 -> 8"):
        reinlm.sft(model, examples, output=tmp_path / "run", resume=True, **sft | {"training": {"batch_size": 8}})
    assert reinlm.sft(model, examples, output=tmp_path / "run", resume=True, **sft).summary["steps"] == 2


@pytest.mark.parametrize("given", [{"resolved": {"renderer": "x"}}, {"recipe": [1]}])
def test_what_sets_nothing_or_is_no_recipe_is_refused(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(reinlm.InputError, match=r"resolved|recipe"):
        reinlm.rl("no/such/model", ROWS, reward="math", output=tmp_path / "run", **given)
