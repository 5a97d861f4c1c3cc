"""Several models on several sets: each cell is what that model alone has on that set alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from training_helpers import HELD_OUT, ROWS, jsonl, pair, saved_model, tiny_policy

import reinlm
from reinlm.cli import main

EVEN = {"functions": {"regex": {"pattern": "[02468]$"}}, "time_limit": None}
HOW: dict[str, Any] = {"samples": 2, "max_new_tokens": 3, "reward": EVEN, "quiet": True}
SETS = {"seen": ROWS[:5], "harder": HELD_OUT[:7]}


def halves(completions: list[str], **_: Any) -> list[float]:
    return [0.5 * len(text) for text in completions]


def test_every_cell_is_the_evaluation_of_its_model_on_its_set_alone() -> None:
    models = {name: pair(tiny_policy(seed)) for seed, name in enumerate(("first", "second"))}
    table = reinlm.evaluate(models, SETS, **HOW)
    assert list(table) == [(model, name) for model in models for name in SETS]
    for (model, name), cell in table.items():
        alone = reinlm.evaluate(models[model], SETS[name], **HOW)
        assert cell.metrics == alone.metrics
        assert [g.group for g in cell.groups] == [g.group for g in alone.groups]
    assert table["first", "seen"].metrics != table["second", "seen"].metrics


def test_rows_hold_names_counts_and_the_interval_of_the_reward() -> None:
    """Mean rewards of the prompts m_i: Student's interval with n - 1 = 2 degrees of freedom, t = 4.302653."""
    how = HOW | {"reward": {"functions": halves, "time_limit": None}}
    table = reinlm.evaluate({"one": pair(tiny_policy())}, {"a": ROWS[:3]}, **how)
    (row,) = table.rows()
    assert (row["model"], row["set"], row["prompts"], row["answers"]) == ("one", "a", 3, 6)
    means = [sum(0.5 * len(r.completion) for r in g.group.rollouts) / 2 for g in table["one", "a"].groups]
    mean = sum(means) / 3
    half = 4.302653 * (sum((m - mean) ** 2 for m in means) / 2) ** 0.5 / 3**0.5
    assert half > 0.0
    assert row["reward"] == pytest.approx(mean)
    assert (row["reward_low"], row["reward_high"]) == pytest.approx((mean - half, mean + half), rel=1e-5)
    assert "reward_low" not in table["one", "a"].metrics
    (head, body) = table.tables()["reward"]
    assert head == ("reward", "a (3 prompts, 6 answers)")
    assert body == ("one", f"{mean:.4g} ({mean - half:.4g} to {mean + half:.4g})")


def test_one_prompt_has_no_interval_of_its_reward() -> None:
    how = HOW | {"reward": {"functions": halves, "time_limit": None}}
    (row,) = reinlm.evaluate({"one": pair(tiny_policy())}, ROWS[:1], **how).rows()
    assert row["set"] == "data"
    assert "reward_low" not in row


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"recipe": {"model": "m", "models": {"a": "n"}, "data": "d"}}, "model and models are both given"),
        (
            {"recipe": {"model": "m", "data": "d", "evaluation": {"data": {"a": "d"}}}},
            "data and evaluation.data are both given",
        ),
        ({"recipe": {"data": "d"}}, "'model' is required"),
        ({"recipe": {"models": {"a": "n"}}}, "'data' is required"),
        ({"model": [object()], "data": ROWS}, "a list of models holds folders"),
        ({"model": ["m", "m"], "data": ROWS}, "two of the models are the same"),
        ({"model": "m", "data": {"a": ROWS}, "evaluation": {"data": {"b": ROWS}}}, "both name sets"),
        ({"models": "m", "data": ROWS}, "models is a mapping of names to models"),
    ],
)
def test_what_names_models_or_sets_twice_or_not_at_all_is_refused(given: Any, told: str) -> None:
    with pytest.raises(reinlm.InputError, match=told):
        reinlm.evaluate(**given, reward="exact_match")


def test_a_set_that_cannot_be_used_is_named_before_a_model_is_loaded(tmp_path: Path) -> None:
    bad = jsonl(tmp_path / "bad.jsonl", [{"text": "1+1=2"}])
    with pytest.raises(reinlm.InputError, match=r"bad\.jsonl"):
        reinlm.evaluate({"one": pair(tiny_policy())}, {"good": ROWS[:2], "bad": str(bad)}, **HOW)
    columns = {"good": ROWS[:2], "other": [{"prompt": "1+1="}]}
    with pytest.raises(reinlm.InputError, match="evaluation set 'other'"):
        reinlm.evaluate({"one": pair(tiny_policy())}, columns, **HOW | {"reward": "exact_match"})
    with pytest.raises(reinlm.InputError, match="no such model folder"):
        reinlm.evaluate(["./none", "./other"], ROWS, **HOW)


def test_the_command_prints_a_table_or_a_line_for_each_model_and_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    for seed, name in enumerate(("a", "b")):
        saved_model(tmp_path / name, seed=seed)
    jsonl(tmp_path / "easy.jsonl", SETS["seen"])
    jsonl(tmp_path / "hard.jsonl", SETS["harder"])
    (tmp_path / "r.yaml").write_text(json.dumps({"model": "none", "data": "none.jsonl", "reward": EVEN}))
    words = ["eval", "r.yaml", "-m", "a", "-m", "second=b", "-d", "easy.jsonl", "-d", "ood=hard.jsonl"]
    words += ["--max-new-tokens", "3", "--samples", "2", "-q"]

    def ran(*more: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        told = capsys.readouterr()
        assert not ended.value.code, told.err
        return str(told.out)

    shown = ran()
    assert "easy (5 prompts, 10 answers)" in shown
    assert "ood (7 prompts, 14 answers)" in shown
    rows = [json.loads(line) for line in ran("--json", "-o", "answers.jsonl").splitlines()]
    assert [(row["model"], row["set"]) for row in rows] == [
        ("a", "easy"),
        ("a", "ood"),
        ("second", "easy"),
        ("second", "ood"),
    ]
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == 48
    of_cell = [row["reward"] for row in answers if (row["model"], row["set"]) == ("second", "ood")]
    assert sum(of_cell) / 14 == pytest.approx(rows[3]["accuracy"])
    assert "evaluation:\n  data:\n    easy:" in ran("--explain").replace("  # --data", "")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["eval", "-m", "x=a", "-m", "x=b", "-d", "easy.jsonl", "-r", "math"])
    assert "--model: two are named 'x'" in capsys.readouterr().err


def test_scores_outside_0_to_1_have_an_accuracy_only_where_it_is_said_what_is_right() -> None:
    """`halves` gives 0.5 for each character: up to 1.5."""
    how = HOW | {"reward": {"functions": halves, "time_limit": None}}
    plain = reinlm.evaluate(pair(tiny_policy()), ROWS[:4], **how)
    assert {"accuracy", "accuracy_low", "accuracy_high", "pass@1", "pass@2"}.isdisjoint(plain.metrics)
    assert any("no accuracy: rewards of 'halves' lie outside 0 to 1" in note for note in plain.notes)
    told = reinlm.evaluate(pair(tiny_policy()), ROWS[:4], evaluation={"correct_above": 1.0}, **how)
    lengths = [len(one.completion) for group in told.groups for one in group.group.rollouts]
    assert max(lengths) == 3
    assert told.metrics["accuracy"] == sum(n > 2 for n in lengths) / 8
    assert told.notes == ()
    rest = {name: value for name, value in told.metrics.items() if not name.startswith(("accuracy", "pass@"))}
    assert plain.metrics == rest
