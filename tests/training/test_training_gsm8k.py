"""GSM8K's own files, as they come: no conversion, a tokenizer trained on them, a model of any size."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from training_helpers import metrics

import reinlm
from reinlm.models import load_policy, save_policy, tiny_model, train_tokenizer

FOLDER = Path(os.environ.get("REINLM_SHARED_DATA") or Path(__file__).resolve().parents[2] / "../shared/data").resolve()
TRAIN, TEST = FOLDER / "gsm8k_train.jsonl", FOLDER / "gsm8k_test.jsonl"


@pytest.mark.skipif(
    not (TRAIN.is_file() and TEST.is_file()), reason=f"no gsm8k_train.jsonl and gsm8k_test.jsonl in {FOLDER}"
)
def test_rl_on_gsm8k_runs_logs_evaluates_and_saves(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with open(TRAIN, encoding="utf-8") as file:
        texts = [" ".join(json.loads(line).values()) for line in itertools.islice(file, 300)]
    tokenizer = train_tokenizer(texts, 400)
    model = tiny_model("qwen3", vocab_size=len(tokenizer), hidden_size=32, layers=1, heads=2, context=512)
    save_policy(load_policy((model, tokenizer)), tmp_path / "model")
    result = reinlm.rl(
        str(tmp_path / "model"),
        {"path": str(TRAIN), "limit": 64, "on_long_prompt": "skip"},
        reward="math",
        algorithm={"base": "dapo", "filters": []},
        output=tmp_path / "run",
        quiet=True,
        rollout={"group_size": 4, "batch_size": 16, "max_new_tokens": 12},
        training={"steps": 2},
        evaluation={"data": {"test": {"path": str(TEST), "limit": 8}}, "max_new_tokens": 12},
    )
    records = metrics(result.folder)
    assert [record["step"] for record in records] == [0, 1, 2]
    assert 0 <= records[2]["eval/test/accuracy"] <= records[2]["eval/test/accuracy_high"] <= 1
    assert records[1]["completions/max_length"] == 12
    assert records[1]["rewards/math/mean"] == records[1]["reward"]
    asked = [json.loads(line)["question"] for line in itertools.islice(open(TEST, encoding="utf-8"), 8)]  # noqa: SIM115
    shown = json.loads((result.folder / "samples.json").read_text())["after"]
    assert [question in row["prompt"] for question, row in zip(asked, shown, strict=True)] == [True] * 8
    last = result.folder / "checkpoints" / "last"
    reloaded: Any = AutoModelForCausalLM.from_pretrained(last)
    own = AutoTokenizer.from_pretrained(last)
    ids = own(asked[0], return_tensors="pt")["input_ids"]
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 16, "do_sample": False}
    assert reloaded.generate(ids, **options).tolist() == result.policy.model.generate(ids, **options).tolist()
    assert asked[0][:20] in (result.folder / "report.html").read_text(encoding="utf-8")
