"""Calculator marks: the rules by hand, with the ways around them, and the recipes on a page of problems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recipe_files import recipe_files

FOLDER = Path(__file__).parents[2] / "recipes" / "calculator"


load = recipe_files("calculator")
rewards = load("rewards")
QUESTION = (
    "Ann sold clips to 48 friends in April, and each of 2 shops took half as many in May, at $1,200.50. How many?"
)
GOOD = "Ann sold 48/2 = <<48/2=24>>24 in May.\nShe sold <<48+24=72>>72 altogether.\n#### 72"
RULES = ("marks", "arithmetic", "grounded", "written", "final")


def score(rule: str, text: str) -> float:
    arguments = {"completions": [text], "prompts": [QUESTION]}
    if rule not in ("grounded", "calculation"):
        del arguments["prompts"]
    (value,) = getattr(rewards, rule)(**arguments)
    return float(value)


def test_a_good_solution_passes_every_rule() -> None:
    assert [score(rule, GOOD) for rule in (*RULES, "calculation")] == [1] * 6


@pytest.mark.parametrize(
    ("rule", "expected", "text"),
    [
        ("arithmetic", 1 / 2, GOOD.replace("=24>>", "=23>>")),
        ("arithmetic", 1 / 2, "<<48/2=24>>24\n#### 24"),  # one sum where two are asked for
        ("arithmetic", 1 / 3, "<<48/2=24>>24 <<48/2=24>>24 <<48/2=24>>24"),
        ("arithmetic", 1 / 2, "<<48/2=24>>24 <<24*1=24>>24"),
        ("arithmetic", 1 / 2, "<<48/2=24>>24 <<24+0=24>>24"),
        ("arithmetic", 1 / 2, "<<48/2=24>>24 <<24=24>>24"),
        ("arithmetic", 1 / 2, "<<48/2=24>>24 <<24-24-2"),
        ("arithmetic", 1, "<<48/7=6.86>>6.86 <<1,200.50*2=2,401>>2,401"),
        ("arithmetic", 0, "<<48/0=0>> <<2**9=512>>512"),
        ("arithmetic", 0, ""),
        ("marks", 1, "<<48/2=25>>25 <<24*1=24>>"),
        ("marks", 1 / 2, "<<48/2=24>>24"),
        ("marks", 1 / 4, "<<48/2=24>>24 <<24=24>> <<48/2=>> <<48/2=24"),
        ("marks", 0, "<<48/0=0>> no"),
        ("grounded", 1 / 2, "<<48/2=24>>24 <<24+5=29>>29"),
        ("grounded", 1, "<<48/2=23>>23 <<23+2=25>>25"),  # the operands, not the results, are judged here
        ("grounded", 1, "<<1200.5*2=2401>> <<2401+48=2449>>"),
        ("grounded", 0, "<<=24>>24 <<a=b>>"),
        ("written", 1 / 2, GOOD.replace(">>72", ">>71")),
        ("written", 1 / 2, GOOD.replace(">>72", ">> clips")),
        ("written", 0, "<<48/2=>> <<48+=>>"),
        ("final", 0, GOOD.replace("#### 72", "#### 71")),
        ("final", 0, GOOD.replace("\n#### 72", "")),
        ("final", 0, GOOD + "\nNo."),
        ("final", 0, "#### 72"),
    ],
)
def test_a_rule_counts_what_its_docstring_says(rule: str, expected: float, text: str) -> None:
    assert score(rule, text) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    [
        "<<2*2=4>>4 <<2*2=4>>4\n#### 4",
        "<<1*1=1>>1 <<1+1=2>>2\n#### 2",
        "<<5+5=10>>10 <<6+6=12>>12\n#### 12",  # easy numbers that nobody asked about
        "<<48+2=50>>50\n#### 50",
        GOOD.replace("<<48/2=24>>24", "<<48/2=25>>25"),
        GOOD.replace("#### 72", "#### 24"),
        "<<" + "48+" * 500 + "2=24002>>24002 <<48+2=50>>50\n#### 51",
        "",
    ],
    ids=["repeated", "trivial", "invented-numbers", "one-sum", "wrong", "another-answer", "long", "empty"],
)
def test_a_way_around_the_rules_is_not_accepted(text: str) -> None:
    assert score("calculation", text) == 0


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("48/2", 24),
        ("(5+3)*2-1", 15),
        ("-.5*4", -2),
        ("1,200+1", 1201),
        ("7/0", None),
        ("2**999999", None),
        ("__import__('os')", None),
        ("True+1", None),
        ("(" * 5000, None),
        ("2 3", None),
        ("", None),
    ],
)
def test_expressions_are_read_and_never_run(expression: str, value: float | None) -> None:
    assert rewards.value_of(expression) == value


# ------------------------------------------------------------------------------------------------ the recipes

SMALL = ("hidden_size=16", "heads=2", "layers=1", "intermediate_size=16", "tokenizer.vocab_size=300")


def command_line(*words: str) -> None:
    from reinlm.cli import main

    with pytest.raises(SystemExit) as ended:
        main([*words])
    assert not ended.value.code


def test_the_recipes_run_on_files_in_gsm8ks_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipes").symlink_to(FOLDER.parent)
    monkeypatch.chdir(tmp_path)
    for name in ("gsm8k_train.jsonl", "gsm8k_test.jsonl"):
        rows = [{"question": f"Ann has {n} pens and finds {n}. How many?", "answer": GOOD} for n in range(12)]
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    command_line("create-model", "recipes/calculator/model.yaml", *SMALL)
    command_line("sft", "recipes/calculator/sft.yaml", "--steps", "2", "training.batch_size=4", "-q")
    command_line(
        "rl", "recipes/calculator/rl.yaml", "--steps", "2", "-q",
        "rollout.batch_size=8", "rollout.group_size=4", "rollout.max_new_tokens=8",
    )  # fmt: skip
    records = [json.loads(line) for line in Path("runs/calculator/rl/metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 1, 2]
    assert all(0 <= records[1][f"rewards/{name}/mean"] <= 1 for name in ("calculation", *RULES))
