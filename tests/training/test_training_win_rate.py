"""The win rate over another model or over a file of answers: counts by hand, equal by every way to give the other side."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from training_helpers import ROWS, jsonl, pair, saved_model, tiny_policy

import reinlm


def digits(completions: list[str], **_: Any) -> list[float]:
    """A score that differs between answers and often ties."""
    return [float(sum(letter in "02468" for letter in text)) for text in completions]


HOW: dict[str, Any] = {"max_new_tokens": 3, "quiet": True, "reward": {"functions": digits, "time_limit": None}}


def test_a_file_of_answers_is_compared_answer_by_answer(tmp_path: Path) -> None:
    """Two answers against one or two of the file: the pairs are (1st, 1st) and (2nd, 2nd or the 1st again)."""
    theirs = [
        {"prompt": row["prompt"], "completion": text}
        for row in ROWS[:6]
        for text in ("2", "00")[: 1 + (row is ROWS[0])]
    ]
    file = jsonl(tmp_path / "answers.jsonl", theirs)
    found = reinlm.evaluate(pair(tiny_policy()), ROWS[:6], against=str(file), samples=2, **HOW)
    wins = ties = losses = 0
    rows = []
    for group in found.groups:
        ours = digits([str(rollout.completion) for rollout in group.group.rollouts])
        other = [1.0, 2.0] if group.group.task.content == ROWS[0]["prompt"] else [1.0, 1.0]
        for a, b in zip(ours, other, strict=True):
            wins, ties, losses = wins + (a > b), ties + (a == b), losses + (a < b)
            rows.append((a > b) + 0.5 * (a == b))
    assert wins
    assert losses
    metrics = found.metrics
    assert (metrics["wins"], metrics["ties"], metrics["losses"], metrics["unpaired"]) == (wins, ties, losses, 0.0)
    assert metrics["win_rate"] == pytest.approx((wins + ties / 2) / 12)
    assert 0.0 <= metrics["win_rate_low"] < metrics["win_rate"] < metrics["win_rate_high"] <= 1.0


def test_a_model_against_another_and_against_the_file_of_its_answers(tmp_path: Path) -> None:
    """Exchanged sides give the complement where both sides have the answers of a file."""
    models = [str(saved_model(tmp_path / name, seed=seed)) for seed, name in enumerate(("a", "b"))]
    files = [str(tmp_path / f"{name}.jsonl") for name in ("a", "b")]
    for model, file in zip(models, files, strict=True):
        reinlm.evaluate(model, ROWS[:8], output=file, **HOW)
    one, other = (
        reinlm.evaluate(model, ROWS[:8], against=file, **HOW).metrics
        for model, file in zip(models, reversed(files), strict=True)
    )
    assert one["win_rate"] + other["win_rate"] == pytest.approx(1.0)
    assert (one["wins"], one["ties"]) == (other["losses"], other["ties"])
    sampled = reinlm.evaluate({"a": models[0], "b": models[1]}, ROWS[:8], against=models[1], **HOW)
    counts = [sum(cell.metrics[name] for name in ("wins", "ties", "losses")) for cell in sampled.values()]
    assert counts == [8.0, 8.0]
    assert sampled["b", "data"].metrics["ties"] < 8.0  # the other side draws noise of its own
    assert [row[0] for row in sampled.tables()["win_rate"]] == ["win_rate", "a", "b"]


def test_an_answer_in_the_file_may_be_empty(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "answers.jsonl", [{"prompt": row["prompt"], "completion": ""} for row in ROWS[:4]])
    found = reinlm.evaluate(pair(tiny_policy()), ROWS[:4], against=str(file), **HOW)
    ours = [digits([str(group.group.rollouts[0].completion)])[0] for group in found.groups]
    assert found.metrics["win_rate"] == pytest.approx(sum(0.5 if value == 0 else 1.0 for value in ours) / 4)


def test_a_pair_with_an_answer_without_reward_is_left_out_and_counted(tmp_path: Path) -> None:
    calls = itertools.count()

    def some(completions: list[str], **_: Any) -> list[float | None]:
        return [None if next(calls) % 2 else 1.0 for _ in completions]

    file = jsonl(tmp_path / "answers.jsonl", [{"prompt": row["prompt"], "completion": "1"} for row in ROWS[:4]])
    how = HOW | {"reward": {"functions": some, "time_limit": None}}
    metrics = reinlm.evaluate(pair(tiny_policy()), ROWS[:4], against=str(file), **how).metrics
    assert (metrics["ties"], metrics["unpaired"], metrics["win_rate"]) == (2.0, 2.0, 0.5)


def test_a_file_without_an_answer_is_refused_before_anything_is_sampled(tmp_path: Path) -> None:
    def never(completions: list[str], **_: Any) -> list[float]:
        raise AssertionError("sampled")

    file = jsonl(tmp_path / "answers.jsonl", [{"prompt": ROWS[0]["prompt"], "completion": "1"}])
    how = HOW | {"reward": {"functions": never, "time_limit": None}}
    with pytest.raises(reinlm.InputError, match=r"has no answer to 3 of 4 prompts"):
        reinlm.evaluate(pair(tiny_policy()), ROWS[:4], against=str(file), **how)


def test_what_cannot_be_compared_with_is_refused(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "answers.jsonl", [{"prompt": ROWS[0]["prompt"], "completion": "1"}])
    model = pair(tiny_policy())
    with pytest.raises(reinlm.InputError, match=r"has no answer to 3 of 4 prompts, the first: data\[1\]"):
        reinlm.evaluate(model, ROWS[:4], against=str(file), **HOW)
    with pytest.raises(reinlm.InputError, match="no such file"):
        reinlm.evaluate(model, ROWS[:4], against="none.jsonl", **HOW)
    mixed = [{"prompt": row["prompt"], "completion": "1", "model": name} for row in ROWS[:4] for name in ("a", "b")]
    with pytest.raises(reinlm.InputError, match="holds answers of several models: a, b"):
        reinlm.evaluate(model, ROWS[:4], against=str(jsonl(tmp_path / "mixed.jsonl", mixed)), **HOW)
    with pytest.raises(reinlm.InputError, match=r"^against: no such model folder: \./none"):
        reinlm.evaluate(model, ROWS[:4], against="./none", **HOW)
    with pytest.raises(reinlm.InputError, match="set reward"):
        reinlm.evaluate(model, ROWS[:4], against=str(file), environment="turns.py:Turns")
