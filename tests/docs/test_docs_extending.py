"""The page on extending: every example is written to a file, named in a recipe and run for a step."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.numpy import load_file

import reinlm
from reinlm.algorithms import ladder
from reinlm.config import merge
from reinlm.runs import load_state, read_metrics
from tiny_runs import ROWS, SETTINGS, graded, local, tiny

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))


def blocks(title: str, number: int = 0) -> tuple[str, dict[str, Any]]:
    """The file and the recipe of a section; `number`: of its first example, its second, …"""
    codes = re.findall(r"```python[^\n]*\n(.*?)```", SECTIONS[title], re.DOTALL)
    recipes = re.findall(r"```yaml\n(.*?)```", SECTIONS[title], re.DOTALL)
    return codes[number], yaml.safe_load(recipes[number]) if recipes else {}


def play(title: str, folder: Path, number: int = 0, **changes: Any) -> tuple[dict[str, float], Path]:
    """Run a section's example for a step; the step's metrics and the run's folder."""
    code, recipe = blocks(title, number)
    folder.mkdir(exist_ok=True)
    os.chdir(folder)  # the test's own folder is left again by a fixture
    (folder / "mine.py").write_text(code, encoding="utf-8")
    tree = merge(merge({**SETTINGS, "training": {"steps": 1}}, recipe), changes)
    if "optimizer" in recipe:
        tree["optimizer"] = recipe["optimizer"]
    if "reward" not in tree:
        tree["reward"] = local(graded)
    options = {name: tree.pop(name) for name in ("callbacks",) if name in tree}
    run = reinlm.rl(tiny(), ROWS, output=folder / "run", quiet=True, **tree, **options)
    return read_metrics(run.folder / "metrics.jsonl")[-1], run.folder


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_algorithm_has_its_choices_and_its_updates(tmp_path: Path) -> None:
    _, folder = play("An algorithm", tmp_path, rollout={"batch_size": 64})
    assert "centred" in [card.name for card in ladder()]
    algorithm: Any = reinlm.algorithm("centred")
    assert (algorithm.gate.high, algorithm.kl, algorithm.aggregation.__name__) == (0.28, None, "token_mean")
    manifest = load_state(folder / "checkpoints" / "last")["run"]
    assert manifest["algorithm"]["updates"] == algorithm.updates.minibatches == 2


def test_a_choice_takes_its_values_from_the_recipe(tmp_path: Path) -> None:
    play("A choice", tmp_path)
    gate: Any = reinlm.algorithm("grpo", gate={"tanh": 2.0}).gate
    assert gate.scale == 2.0


def test_a_loss_term_asks_for_the_reference(tmp_path: Path) -> None:
    play("A loss term", tmp_path)
    assert reinlm.algorithm("grpo", kl=None, terms=["drift"]).needs_reference


def test_rewards_of_a_file_are_logged_by_name(tmp_path: Path) -> None:
    found, _ = play("A reward", tmp_path)
    assert -0.04 <= found["rewards/brevity/mean"] < 0
    assert "rewards/math/mean" in found
    named, _ = play("A reward", tmp_path / "named", number=1)
    assert 0 < named["rewards/near/mean"] < named["reward"] == pytest.approx(2 * named["rewards/near/mean"])


def test_an_environment_of_several_turns_gives_its_rewards(tmp_path: Path) -> None:
    found, folder = play(
        "An environment of several turns", tmp_path, run={"rollouts_every": 1}, rollout={"max_new_tokens": 12}
    )
    rows = [json.loads(line) for line in (folder / "rollouts/step_1.jsonl").read_text().splitlines()]
    assert max(row["turns"] for row in rows) == 2
    assert "rewards/guess/mean" in found


def test_a_tool_is_called_and_its_answer_read(tmp_path: Path) -> None:
    _, folder = play("An environment with a tool", tmp_path, run={"rollouts_every": 1}, rollout={"max_new_tokens": 12})
    rows = [json.loads(line) for line in (folder / "rollouts/step_1.jsonl").read_text().splitlines()]
    assert max(row["turns"] for row in rows) == 2
    assert any("called" in row["rewards"] for row in rows)


def test_a_column_flows_from_the_engine_to_the_log_and_the_loss(tmp_path: Path) -> None:
    _, folder = play("An engine and a per-token column", tmp_path)
    assert load_file(folder / "rollouts/step_1.safetensors")["column/position"].max() < 1.0
    assert reinlm.algorithm("grpo", terms=["late"]).needs_columns == {"position"}


def test_functions_are_gate_and_advantage(tmp_path: Path) -> None:
    _, folder = play("A function as gate, advantage or aggregation", tmp_path)
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["algorithm"]
    assert (config["gate"], config["advantage"]) == ("mine.py:soft_clip", "mine.py:median_baseline")
    assert config["aggregation"] == "mine.py:root_length"


def test_an_optimizer_and_a_schedule_have_names(tmp_path: Path) -> None:
    found, _ = play("An optimizer and a schedule", tmp_path, training={"steps": 2})
    assert found["learning_rate"] == pytest.approx(1e-4)  # final_fraction of 1e-3


def test_a_callback_logs_what_it_counts(tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    exec(blocks("A callback")[0], scope)
    found, _ = play("A callback", tmp_path, callbacks=scope["callbacks"])
    assert 1 <= found["mine/longest"] <= 4


def test_a_tracker_is_named_with_its_settings(tmp_path: Path) -> None:
    found, folder = play("A tracker", tmp_path)
    assert (folder / "metric.csv").read_text().splitlines()[-1] == f"1,{found['loss']}"


def test_every_section_is_run_by_a_test() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{title}"' in source for title in SECTIONS), list(SECTIONS)
