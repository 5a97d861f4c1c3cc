"""The loss on held-out text in `reinlm eval`: equal to a plain loop in float64, alone, beside a set, and in a table."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from training_helpers import jsonl

import reinlm
from reinlm.cli import main
from tiny_runs import EXAMPLES, ROWS, length, saved, tiny

TEXTS = [{"text": "1+1=2"}, {"text": "12+30=42"}, {"text": "7"}]
REWARD: Any = {"functions": length, "time_limit": None}


def by_hand(model: Any, tokenizer: Any, rows: list[tuple[str, str]]) -> tuple[float, float, float, int]:
    """-1/N Σ log π, mean entropy, share of first choices and N, over the completion and its stop token, one row at a time."""
    losses: list[float] = []
    entropies: list[float] = []
    hits: list[bool] = []
    for before, after in rows:
        front = tokenizer(before, add_special_tokens=False)["input_ids"]
        ids = [*front, *tokenizer(after, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        with torch.no_grad():
            logs = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
        for place in range(max(len(front), 1), len(ids)):
            row = logs[place - 1]
            losses.append(-float(row[ids[place]]))
            entropies.append(-float((row.exp() * row).sum()))
            hits.append(int(row.argmax()) == ids[place])
    return sum(losses) / len(losses), sum(entropies) / len(losses), sum(hits) / len(losses), len(losses)


def agrees(metrics: dict[str, float], expected: tuple[float, float, float, int], rel: float = 1e-9) -> None:
    loss, entropy, first, tokens = expected
    assert metrics["text/loss"] == pytest.approx(loss, rel=rel)
    assert metrics["text/perplexity"] == pytest.approx(math.exp(loss), rel=rel)
    assert metrics["text/entropy"] == pytest.approx(entropy, rel=rel)
    assert metrics["text/mean_token_accuracy"] == pytest.approx(first)
    assert metrics["text/tokens"] == tokens


def test_the_loss_of_whole_texts_and_of_completions_is_that_of_a_plain_loop() -> None:
    """Of a whole text all tokens but the first count, and its stop token; of a completion its tokens and the stop token."""
    model, tokenizer = tiny()
    found = reinlm.evaluate((model, tokenizer), text=TEXTS, quiet=True)
    agrees(found.metrics, by_hand(model, tokenizer, [("", row["text"]) for row in TEXTS]))
    assert found.metrics["text/tokens"] == 5 + 8 + 1
    assert found.groups == ()
    assert "held-out text" in repr(found)
    assert found._repr_html_().count("<table>") == 1
    pairs = [(row["prompt"], row["completion"]) for row in EXAMPLES]
    agrees(reinlm.evaluate((model, tokenizer), text=EXAMPLES, quiet=True).metrics, by_hand(model, tokenizer, pairs))


def test_text_beside_one_set_adds_its_figures_and_changes_no_other() -> None:
    how: dict[str, Any] = {"reward": REWARD, "max_new_tokens": 3, "quiet": True}
    alone = reinlm.evaluate(tiny(), ROWS[:3], **how)
    both = reinlm.evaluate(tiny(), ROWS[:3], text=TEXTS, **how)
    model, tokenizer = tiny()
    agrees(both.metrics, by_hand(model, tokenizer, [("", row["text"]) for row in TEXTS]))
    assert {name: value for name, value in both.metrics.items() if "text/" not in name} == alone.metrics
    assert [g.returns for g in both.groups] == [g.returns for g in alone.groups]


def test_models_and_texts_are_a_table_and_a_line_of_json_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    for seed, name in enumerate(("a", "b")):
        saved(tmp_path / name, seed=seed)
    jsonl(tmp_path / "sums.jsonl", TEXTS)
    jsonl(tmp_path / "pairs.jsonl", EXAMPLES[:4])
    words = ["eval", "-m", "a", "-m", "b", "--text", "sums.jsonl", "--text", "answers=pairs.jsonl", "-q"]

    def ran(*more: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        told = capsys.readouterr()
        assert not ended.value.code, told.err
        return str(told.out)

    rows = [json.loads(line) for line in ran("--json").splitlines()]
    assert [(row["model"], row["set"]) for row in rows] == [(m, t) for m in ("a", "b") for t in ("sums", "answers")]
    shapes = {"sums": [("", row["text"]) for row in TEXTS]}
    shapes["answers"] = [(row["prompt"], row["completion"]) for row in EXAMPLES[:4]]
    for row in rows:
        model, tokenizer = tiny(seed="ab".index(row["model"]))
        agrees(row, by_hand(model, tokenizer, shapes[row["set"]]), rel=1e-6)  # saved in float32
        assert "prompts" not in row
    shown = ran()
    assert "sums (14 tokens)" in shown
    assert f"{rows[2]['text/loss']:.4g}" in shown
    assert f"{rows[3]['text/perplexity']:.4g}" in shown
    table = reinlm.evaluate(
        {"a": "a"}, {"easy": ROWS[:2]}, text="sums.jsonl", reward=REWARD, max_new_tokens=2, quiet=True
    )
    assert list(table) == [("a", "easy"), ("a", "text")]
    assert table["a", "text"].metrics["text/loss"] == rows[0]["text/loss"]
    assert [row["set"] for row in table.rows() if "prompts" in row] == ["easy"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"text": "none.jsonl"}, r"no such file.*none\.jsonl|none\.jsonl.*no such file"),
        ({"text": "empty.jsonl"}, r"empty\.jsonl: no rows"),
        ({"text": [{"prompt": "1+1="}]}, "text"),
        ({"text": [{"text": "1" * 70}]}, r"longer than 64 tokens.*\(take a model with a longer context\)"),
        ({"text": {"a": [{"text": "1" * 70}, {"text": "1"}]}}, r"or set text\.data\.a\.on_long_prompt=skip"),
        ({"text": {"path": TEXTS, "shuffle": False}}, r"text\.data\.shuffle has no effect"),
        ({"text": TEXTS, "reward": "exact_match"}, "reward has no effect: without data nothing is sampled"),
        ({"text": TEXTS, "samples": 2}, r"evaluation\.samples has no effect"),
        ({"text": TEXTS, "rollout": {"max_running": 3}}, r"rollout\.max_running has no effect"),
        ({"text": TEXTS, "output": "x.jsonl"}, "output has no effect"),
        ({}, "'data' is required"),
        (
            {"data": {"a": ROWS, "b": ROWS}, "text": {"a": TEXTS}, "reward": "exact_match"},
            "a set of prompts and a text are both named 'a'",
        ),
    ],
)
def test_text_that_cannot_be_measured_and_options_without_answers_are_refused(
    given: Any, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(reinlm.InputError, match=told):
        reinlm.evaluate(tiny(), quiet=True, **given)


def test_a_loss_that_is_not_finite_ends_the_evaluation() -> None:
    model, tokenizer = tiny()
    reinlm.evaluate((model, tokenizer), text=TEXTS, quiet=True)
    with torch.no_grad():
        next(iter(model.parameters())).fill_(math.nan)
    with pytest.raises(reinlm.RunError, match="text text: the loss per token is nan"):
        reinlm.evaluate((model, tokenizer), text=TEXTS, quiet=True)
