"""The recipes of `recipes/verifier`: solutions of language models as pairs and labels, and reward models of both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from recipe_files import RECIPES, recipe_files

load = recipe_files("verifier")
prepare: Any = load("prepare")
SMALL = ("hidden_size=16", "heads=2", "layers=1", "intermediate_size=16", "tokenizer.vocab_size=300")


def problem(number: int, verdicts: str) -> dict[str, Any]:
    """A row in the form of gsm8k_model_solutions.jsonl; `verdicts` has a letter r or w for each model."""
    models = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
    solutions = {
        model: {"is_correct": verdict == "r", "solution": f"{number}+{place}=<<{number}+{place}>>\nA: {number}{place}"}
        for place, (model, verdict) in enumerate(zip(models, verdicts, strict=True))
    }
    return {"question": f"Ann has {number} pears. How many?", "ground_truth": f"A: {number}", **solutions}


PROBLEMS = [problem(number, ("rwrw", "wwwr", "rrrr", "wwww")[number % 4]) for number in range(20)]


@pytest.fixture
def solutions(tmp_path: Path) -> Path:
    path = tmp_path / "solutions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS), encoding="utf-8")
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_right_solutions_stand_over_wrong_ones_and_all_have_a_label() -> None:
    found = prepare.read_problem(json.dumps(PROBLEMS[0]), "f:1")
    assert [(row["chosen"][-2:], row["rejected"][-2:], row["sizes"]) for row in prepare.pairs(found)] == [
        ("00", "01", "6b over 6b"), ("00", "03", "6b over 175b"), ("02", "01", "175b over 6b"), ("02", "03", "175b over 175b"),
    ]  # fmt: skip
    assert [(row["model"], row["label"]) for row in prepare.labels(found)] == [
        ("6b_finetuning", True), ("6b_verification", False), ("175b_finetuning", True), ("175b_verification", False),
    ]  # fmt: skip


def test_a_solution_that_two_models_wrote_stands_once() -> None:
    row = problem(1, "rwrw")
    row["175b_finetuning"] = dict(row["6b_finetuning"])
    found = prepare.read_problem(json.dumps(row), "f:1")
    assert list(found["solutions"]) == ["6b_finetuning", "6b_verification", "175b_verification"]


def test_no_problem_is_on_both_sides_of_the_split(solutions: Path, tmp_path: Path) -> None:
    prepare.prepare(solutions, tmp_path / "out")
    sides = {
        side: {row["prompt"] for name in ("pairs", "labels") for row in rows(tmp_path / "out" / f"{side}{name}.jsonl")}
        for side in ("", "held_out_")
    }
    assert (len(sides[""]), len(sides["held_out_"])) == (14, 6)
    assert not sides[""] & sides["held_out_"]
    pairs = sum(len(rows(tmp_path / "out" / f"{side}pairs.jsonl")) for side in sides)
    assert pairs == 5 * 4 + 5 * 3


@pytest.mark.parametrize(
    "line", ['{"question": "1"}', "[]", "{", '{"question": "1", "m": {"solution": "2", "is_correct": "yes"}}']
)
def test_a_row_of_another_form_is_one_line_that_names_it(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(PROBLEMS[0]) + "\n" + line + "\n")
    done = subprocess.run(
        [sys.executable, RECIPES / "verifier" / "prepare.py", "--solutions", tmp_path / "a.jsonl", "--output", tmp_path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path / 'a.jsonl'}:2: no row of 'question'")
    assert len(done.stderr.splitlines()) == 1


def command_line(*words: str) -> None:
    from reinlm.cli import main

    with pytest.raises(SystemExit) as ended:
        main([*words])
    assert not ended.value.code


def test_the_recipes_run_from_solutions_to_reward_models(
    solutions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipes").symlink_to(RECIPES)
    monkeypatch.chdir(tmp_path)
    text = [{"question": row["question"], "answer": row["6b_finetuning"]["solution"]} for row in PROBLEMS]
    Path("gsm8k_train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in text))
    prepare.prepare(solutions, Path("runs/verifier"))
    command_line("create-model", "recipes/verifier/model.yaml", *SMALL)
    command_line("sft", "recipes/verifier/sft.yaml", "--steps", "1", "training.batch_size=4", "-q")
    for recipe, output in (("pairs", "reward"), ("labels", "labels")):
        command_line("reward", f"recipes/verifier/{recipe}.yaml", "--steps", "2", "training.batch_size=4", "-q")
        summary = json.loads(Path(f"runs/verifier/{output}/summary.json").read_text())
        assert summary["steps"] == 2
        after = summary["after"]
        assert after["held_out/accuracy_low"] <= after["held_out/accuracy"] <= after["held_out/accuracy_high"]
        assert Path(f"runs/verifier/{output}/report.html").is_file()
