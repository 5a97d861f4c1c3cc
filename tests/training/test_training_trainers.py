"""The public trainers: step by step, to the end, in a `with` block, and after they have ended."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import reinlm
from reinlm.api.arguments import SHORT
from reinlm.api.keywords import RLKeywords, SFTKeywords
from reinlm.errors import InputError
from reinlm.training.config import RLConfig, SFTConfig
from tiny_runs import EXAMPLES, ROWS, graded, metrics, run_rl, settings, tiny, trainer, weights

pytestmark = pytest.mark.no_cover

HELD_OUT = {"data": {"held_out": ROWS[:2]}, "max_new_tokens": 4}


@pytest.mark.parametrize(("keywords", "config"), [(SFTKeywords, SFTConfig), (RLKeywords, RLConfig)])
def test_every_section_of_the_configuration_is_a_typed_keyword(keywords: Any, config: Any) -> None:
    named = set(keywords.__annotations__)
    options = {"recipe", "output", "resume", "overwrite", "quiet", "command", "callbacks", "peft_config", *SHORT["rl"]}
    positional, filled_in = {"model", "data"}, {"resolved"}
    assert named - options == set(config.model_fields) - positional - filled_in


def test_steps_then_train_end_where_train_alone_ends(tmp_path: Path) -> None:
    straight = run_rl(tmp_path / "straight", training={"steps": 3}, evaluation=HELD_OUT)
    stepped = trainer(tmp_path / "stepped", training={"steps": 3}, evaluation=HELD_OUT)
    first = stepped.step()
    assert not stepped.over
    result = stepped.train()
    assert stepped.over
    assert first["reward"] == metrics(result.folder)[1]["reward"]
    assert metrics(result.folder) == metrics(straight.folder)
    names = ("steps", "stopped")
    assert [result.summary.get(name) for name in names] == [straight.summary.get(name) for name in names]
    ended = weights(result.policy.model)
    assert all(torch.equal(ended[name], value) for name, value in weights(straight.policy.model).items())


def test_training_twice_gives_the_same_result_and_trains_once(tmp_path: Path) -> None:
    made = trainer(tmp_path / "run")
    result = made.train()
    ended = weights(result.policy.model)
    assert made.train() is result
    assert all(torch.equal(ended[name], value) for name, value in weights(result.policy.model).items())
    assert [row["step"] for row in metrics(result.folder)] == [1, 2]


def test_a_step_after_the_last_is_an_error_that_says_what_to_ask_before(tmp_path: Path) -> None:
    with trainer(tmp_path / "run") as made:
        while not made.over:
            made.step()
        with pytest.raises(InputError, match=r"no step left to make: all 2 steps are made.*`over`"):
            made.step()


def test_a_run_in_a_with_block_leaves_its_summary_its_report_and_a_checkpoint(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", training={"steps": 3}) as made:
        made.step()
    assert json.loads((tmp_path / "run/summary.json").read_text())["steps"] == 1
    assert (tmp_path / "run/report.html").is_file()
    assert (tmp_path / "run/checkpoints/step_1").is_dir()
    for call in (made.step, made.train, made.save, made.evaluate):
        with pytest.raises(InputError, match=r"closed, after step 1 of 3.*resume=True"):
            call()
    made.close()


def test_a_block_that_fails_keeps_its_steps_and_its_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), trainer(tmp_path / "run") as made:  # noqa: PT012
        made.step()
        raise ZeroDivisionError
    assert (tmp_path / "run/checkpoints/step_1").is_dir()
    again = run_rl(tmp_path / "run", resume=True)
    assert [row["step"] for row in metrics(again.folder)] == [1, 2]


def test_saving_names_a_checkpoint_that_loads_to_the_weights_as_they_are(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = tiny()
    with trainer(tmp_path / "run", model, training={"steps": 3}) as made:
        made.step()
        path = made.save()
        kept = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
    assert path.name == "step_1"
    assert all(torch.equal(weights(kept)[name], value) for name, value in weights(model[0]).items())


def test_evaluation_scores_the_weights_as_they_are_also_in_a_resumed_run(tmp_path: Path) -> None:
    options: dict[str, Any] = {"training": {"steps": 3}, "evaluation": HELD_OUT, "optimizer": {"learning_rate": 0.9}}
    with trainer(tmp_path / "run", **options) as made:
        at_first = made.evaluate()
        made.step()
        made.step()
        later = made.evaluate()
    assert at_first["eval/held_out/reward"] != later["eval/held_out/reward"]
    with trainer(tmp_path / "run", resume=True, **options) as again:
        assert again.evaluate() == later


def test_a_finished_run_that_is_resumed_has_no_step_left(tmp_path: Path) -> None:
    run_rl(tmp_path / "run")
    with trainer(tmp_path / "run", resume=True) as again:
        assert again.over


def test_a_finished_run_says_so_and_goes_on_with_more_steps(tmp_path: Path, capsys: Any) -> None:
    run_rl(tmp_path / "run", training={"steps": 1})
    run_rl(tmp_path / "run", resume=True, training={"steps": 1}, quiet=False)
    said = " ".join(capsys.readouterr().err.split())
    assert "nothing to do, this run is finished" in said
    assert "this run is finished: all 1 steps are made; --steps N (training.steps) with a larger N goes on" in said
    run_rl(tmp_path / "run", resume=True, training={"steps": 3})
    run_rl(tmp_path / "whole", training={"steps": 3})
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    before = (tmp_path / "run/config.yaml").read_bytes()
    with pytest.raises(InputError, match=r"with training.steps=2: .*step_3 has 3 steps already .*3 or more"):
        trainer(tmp_path / "run", resume=True, training={"steps": 2})
    assert (tmp_path / "run/config.yaml").read_bytes() == before


def test_a_trainer_that_makes_no_step_leaves_no_folder(tmp_path: Path) -> None:
    made = trainer(tmp_path / "run")
    assert not made.over
    made.close()
    del made
    assert not (tmp_path / "run").exists()
    run_rl(tmp_path / "run")


def test_a_folder_is_written_by_one_trainer_and_free_once_that_is_closed_or_collected(tmp_path: Path) -> None:
    first, second = trainer(tmp_path / "run"), trainer(tmp_path / "run")
    first.step()
    with pytest.raises(InputError, match=r"is being written by another run of this process.*close"):
        second.step()
    with pytest.raises(InputError, match="is being written by another run of this process"):
        trainer(tmp_path / "run", resume=True)
    first.close()
    with pytest.raises(InputError, match="exists"):
        second.step()
    again = trainer(tmp_path / "run", resume=True)
    again.step()
    del again
    gc.collect()
    run_rl(tmp_path / "run", resume=True)


def test_a_step_that_raises_closes_the_trainer_which_says_how_to_go_on(tmp_path: Path) -> None:
    down = ["server"]

    def fails_once(completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
        if trainer_state.global_step == 1 and down:
            raise ValueError(f"{down.pop()} gone away")
        return graded(completions)

    made = trainer(tmp_path / "run", reward=fails_once, training={"steps": 3})
    made.step()
    with pytest.raises(reinlm.RunError, match="gone away"):
        made.step()
    for call in (made.step, made.train, made.evaluate, made.save):
        with pytest.raises(InputError, match=r"closed, after step 1 of 3.*resume=True"):
            call()
    made.close()
    resumed = run_rl(tmp_path / "run", resume=True, training={"steps": 3}, reward=fails_once)
    assert resumed.summary["steps"] == 3


@pytest.mark.parametrize("method", ["step", "train", "evaluate", "save", "close"])
def test_a_trainer_is_not_called_from_its_own_callbacks_and_rewards(method: str, tmp_path: Path) -> None:
    class Calls(reinlm.Callback):
        def on_step_ended(self, event: Any, control: Any) -> None:
            getattr(made, method)()

    complaint = rf"trainer.{method}\(\) was called while trainer.step\(\) is running.*control.stop"
    made = trainer(tmp_path / "run", callbacks=[Calls()])
    with pytest.raises(reinlm.RunError, match=f"callback Calls failed in on_step_ended.*{complaint}"):
        made.step()
    assert [row["step"] for row in metrics(tmp_path / "run")] == [1]
    assert (tmp_path / "run/checkpoints/step_1").is_dir()


def test_closing_ends_the_processes_of_rewards(tmp_path: Path) -> None:
    score = tmp_path / "score.py"
    score.write_text("import os\ndef score(completions, **_):\n    return [float(os.getpid())] * len(completions)\n")
    reward = {"functions": f"{score}:score"}
    with reinlm.RLTrainer(tiny(), ROWS, reward=reward, output=tmp_path / "run", quiet=True, **settings()) as made:
        worker = int(made.step()["reward"])
        os.kill(worker, 0)  # it is there
        assert worker != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_the_trainer_of_sft_steps_and_trains_too(tmp_path: Path) -> None:
    options = settings() | {"training": {"steps": 2, "batch_size": 4}}
    del options["rollout"]
    made = reinlm.SFTTrainer(tiny(), EXAMPLES, output=tmp_path / "run", quiet=True, **options)
    loss = made.step()["loss"]
    rows = metrics(made.train().folder)
    assert [row["step"] for row in rows if "loss" in row] == [1, 2]
    assert next(row["loss"] for row in rows if "loss" in row) == loss
    with pytest.raises(InputError, match="closed"):
        made.step()
