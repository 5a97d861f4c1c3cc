"""A finished run that goes on: more steps or epochs, a further evaluation set, and what may not change."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import reinlm
from reinlm.cli.tables import print_result
from reinlm.config import read_recipe
from reinlm.display import cut
from tiny_runs import EXAMPLES, ROWS, graded, local, metrics, run_rl, settings, tiny, trainer, weights


def notes(folder: Path) -> list[str]:
    return list(json.loads((folder / "run.json").read_text())["notes"])


def test_a_run_that_is_extended_has_the_bits_of_one_that_was_as_long_from_the_start(tmp_path: Path) -> None:
    whole = run_rl(tmp_path / "whole", training={"steps": 4})
    run_rl(tmp_path / "run")
    longer = trainer(tmp_path / "run", resume=True, training={"steps": 4})
    longer.train()
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    after = weights(longer.policy.model)
    assert all(torch.equal(after[name], value) for name, value in weights(whole.policy.model).items())
    assert any("resumed after step 2, to go on to step 4: no schedule" in note for note in notes(tmp_path / "run"))


@pytest.mark.parametrize(
    ("first", "then", "steps"),
    [({"epochs": 2.0}, {"steps": 20}, 20), ({"steps": 2}, {"epochs": 0.5}, 4), ({"epochs": 0.5}, {"epochs": 1.0}, 8)],
)
def test_a_run_goes_on_in_steps_or_in_epochs_however_it_was_begun(
    tmp_path: Path, first: dict[str, Any], then: dict[str, Any], steps: int
) -> None:
    common: dict[str, Any] = {"reward": local(graded), "quiet": True} | settings(run={"save_every": 1})
    common.pop("training")
    with reinlm.RLTrainer(tiny(), ROWS, output=tmp_path / "run", training=first, **common) as begun:
        begun.step()
    common.pop("run")
    resumed = reinlm.RLTrainer(tiny(), ROWS, output=tmp_path / "run", resume=True, training=then, **common)
    assert resumed.run.total_steps == steps
    resumed.close()


def test_a_schedule_that_depends_on_the_length_is_said(tmp_path: Path) -> None:
    sft: dict[str, Any] = {"quiet": True, "run": {"tensorboard": False}}
    reinlm.sft(tiny(), EXAMPLES, output=tmp_path / "run", training={"steps": 2, "batch_size": 4}, **sft)
    reinlm.sft(tiny(), EXAMPLES, output=tmp_path / "run", resume=True, training={"steps": 4}, quiet=True)
    rows = metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    (note,) = notes(tmp_path / "run")
    assert note.startswith("resumed after step 2, to go on to step 4: the learning rate goes (cosine) from here on")
    reinlm.sft(tiny(), EXAMPLES, output=tmp_path / "run", resume=True, quiet=True)
    assert notes(tmp_path / "run") == []
    rate = rows[0]["learning_rate"]
    assert 0 < rows[3]["learning_rate"] < rows[2]["learning_rate"] < rate


def test_an_evaluation_set_that_is_added_is_evaluated_from_then_on_and_changes_no_step(tmp_path: Path) -> None:
    whole = run_rl(tmp_path / "whole", training={"steps": 4})
    run_rl(tmp_path / "run")
    evaluation = {"data": {"added": ROWS[:3]}, "every": 1, "samples": 2, "max_new_tokens": 4}
    longer = trainer(tmp_path / "run", resume=True, training={"steps": 4}, evaluation=evaluation)
    result = longer.train()
    assert result.columns == ("", "step 3", "step 4")  # there is no evaluation from before the first step
    assert repr(result).splitlines()[1].split() == ["step", "3", "step", "4"]
    assert [row["step"] for row in metrics(tmp_path / "run") if "eval/added/accuracy" in row] == [3, 4]
    after = weights(longer.policy.model)
    assert all(torch.equal(after[name], value) for name, value in weights(whole.policy.model).items())
    said = [note for note in notes(tmp_path / "run") if "evaluation set" in note]
    assert said == ["resumed after step 2 with a further evaluation set: added (" + cut(str(ROWS[:3]), 100) + ")"]
    assert "added" in read_recipe(tmp_path / "run" / "config.yaml")["evaluation"]["data"]


def test_a_set_that_is_added_stands_at_its_step_in_every_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = {"eval": ROWS[:2]}
    run_rl(tmp_path / "run", evaluation={"data": begun, "max_new_tokens": 4})
    evaluation = {"data": {**begun, "added": ROWS[:3]}, "max_new_tokens": 4}
    result = trainer(tmp_path / "run", resume=True, training={"steps": 4}, evaluation=evaluation).train()
    after = result.summary["after"]["added/mean_length"]
    print_result(result)
    for text in (capsys.readouterr().out.replace("│", " "), repr(result)):
        (line,) = [line.split() for line in text.splitlines() if "added/mean_length" in line]
        assert line == ["added/mean_length", f"{after:.3f}"]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    rows = [re.sub(r"<wbr>|</?strong>", "", row) for row in page.split("<tr>")]
    (row,) = [row for row in rows if "added/mean_" in row and 'scope="row"' in row]
    start, end, change = row.split('<td class="number')[1:]
    assert (start, change.startswith(' change"></td>')) == ('"></td>', True)
    assert "<small>step 4</small>" in end


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"evaluation": {"data": {"test": ROWS[3:5]}}}, r"evaluation\.data\.test\.path"),
        ({"evaluation": {"data": {"test": ROWS[:3]}, "samples": 4}}, r"evaluation\.samples: 1 -> 4"),
        ({"seed": 4}, "seed: 3 -> 4"),
        ({"optimizer": {"learning_rate": 0.5}}, r"optimizer\.learning_rate: 0\.1 -> 0\.5"),
        ({"rollout": {"group_size": 2}}, r"rollout\.group_size: 4 -> 2"),
    ],
)
def test_what_results_depend_on_stays_as_it_was_on_resume(tmp_path: Path, changed: dict[str, Any], named: str) -> None:
    with trainer(tmp_path / "run", evaluation={"data": {"test": ROWS[:3]}, "max_new_tokens": 4}) as begun:
        begun.step()
    with pytest.raises(reinlm.InputError, match=named) as caught:
        trainer(tmp_path / "run", resume=True, **{"evaluation": {"data": {"test": ROWS[:3]}}} | changed)
    assert "a run keeps what its results depend on" in str(caught.value.hint)


SOFT = "def soft(ratio, advantages): return -{factor} * ratio * advantages\n"


def test_a_file_of_parts_that_changed_since_the_run_was_begun_is_named_on_every_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "soft_file.py"
    file.write_text(SOFT.format(factor=1.0))
    chosen = {"algorithm": {"base": "grpo", "gate": "soft_file.py:soft"}}
    run_rl(tmp_path / "run", **chosen)
    begun = read_recipe(tmp_path / "run" / "config.yaml")["resolved"]["files"]
    assert len(begun["soft_file.py"]) == 16
    said = []
    for steps, factor in ((3, 1.0), (4, 2.0), (5, 2.0)):
        file.write_text(SOFT.format(factor=factor))
        trainer(tmp_path / "run", resume=True, training={"steps": steps}, **chosen).train()
        said.append([note for note in notes(tmp_path / "run") if "soft_file.py" in note])
    text = "soft_file.py has changed since the run was begun: its parts are those of the file as it is"
    assert said == [[], [text], [text]]
    assert read_recipe(tmp_path / "run" / "config.yaml")["resolved"]["files"] == begun
