"""What the quickstart promises. Minutes each: run with -m slow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reinlm.data.arithmetic import problems
from reinlm.quickstart import HELD_OUT, _write_data, run_quickstart


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_quickstart_improves_a_half_right_model(seed: int, tmp_path: Path) -> None:
    found = run_quickstart(tmp_path / "run", seed=seed, quiet=True)
    assert found == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert found["held_out_problems"] >= 500
    assert 0.35 <= found["accuracy_before"] <= 0.70
    assert found["accuracy_after"] >= 0.90
    assert found["greedy_after"] >= found["greedy_before"]
    assert found["train_seconds"] <= 240
    assert found["samples_per_second"] > 0
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rewards_for_another_problems_answer_teach_nothing(tmp_path: Path) -> None:
    found = run_quickstart(tmp_path / "run", quiet=True, control=True)
    assert found["accuracy_after"] - found["accuracy_before"] <= 0.05


@pytest.mark.parametrize("control", [False, True])
def test_no_problem_of_the_test_is_in_training_and_the_control_pays_for_other_answers(
    control: bool, tmp_path: Path
) -> None:
    files = _write_data(tmp_path, seed=3, control=control)
    sets = {name: [json.loads(line) for line in file.read_text().splitlines()] for name, file in files.items()}
    prompts = {name: {frozenset(row["prompt"].rstrip("=").split("+")) for row in rows} for name, rows in sets.items()}
    assert len(sets["test"]) == HELD_OUT == len(problems(HELD_OUT, seed=3))
    assert prompts["demonstrations"] == prompts["train"]
    assert not prompts["test"] & prompts["train"]
    assert not prompts["validation"] & (prompts["test"] | prompts["train"])
    right = [row["answer"] == _sum(row["prompt"]) for row in sets["train"]]
    assert sum(right) == len(right) if not control else sum(right) < 0.01 * len(right)
    assert all(row["answer"] == _sum(row["prompt"]) for row in sets["test"] + sets["validation"])


def _sum(prompt: str) -> str:
    """Digits stand least significant first."""
    first, second = (int(part[::-1]) for part in prompt.rstrip("=").split("+"))
    return f"{first + second:04d}"[::-1]
