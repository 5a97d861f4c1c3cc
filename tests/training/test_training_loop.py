"""What every run leaves: metrics that are described, evaluations, early stops, checkpoints that others can load."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from training_helpers import EXAMPLES, HELD_OUT, ROWS, metrics, pair, run_rl, run_sft, saved_model, tiny_policy, weights

import reinlm
from reinlm.runs import read_metrics
from reinlm.runs.declarations import find_metric, read_metrics_info

pytestmark = pytest.mark.no_cover

ALWAYS = {"name": "regex", "pattern": ""}
PROMPTS = [row["prompt"] for row in HELD_OUT]


def even(completions: list[str], **_: Any) -> list[float]:
    return [float(text[-1:] in tuple("02468")) for text in completions]


# ------------------------------------------------------------------------------------------------ metrics


def test_every_metric_of_a_run_is_described(tmp_path: Path) -> None:
    held_out = {"data": {"a": HELD_OUT}, "samples": 4, "max_new_tokens": 4, "every": 1}
    rl = run_rl(
        tmp_path / "rl",
        reward=[{"name": "exact_match"}, even, {"name": "length", "max": 2, "weight": 0.1}],
        algorithm={"base": "grpo", "shapers": ["soft_overlong"], "filters": ["mixed_outcomes"]},
        training={"steps": 2, "minibatches": 2},
        evaluation=held_out,
        run={"save_every": 1},
    )
    plain = run_sft(tmp_path / "plain", training={"steps": 2}, evaluation={"data": {"a": EXAMPLES[:4]}, "every": 1})
    scored = run_sft(tmp_path / "scored", training={"steps": 2}, reward="exact_match", evaluation=held_out)
    logged = [
        (run, {name for record in read_metrics(run.folder / "metrics.jsonl") for name in record})
        for run in (rl, plain, scored)
    ]
    for run, found in logged:
        carried = read_metrics_info(run.folder)
        assert [name for name in sorted(found - {"step"}) if find_metric(name, carried) is None] == []
    names = set.union(*(found for _, found in logged))
    expected = {"reward", "reward_std", "frac_reward_zero_std", "completions/mean_length", "completions/clipped_ratio"}
    expected |= {
        "entropy",
        "kl",
        "clip_ratio/region_mean",
        "step_time",
        "sampling/logprob_difference/mean",
        "grad_norm",
    }
    expected |= {"rewards/exact_match/mean", "rewards/even/mean", "eval/a/accuracy", "eval/a/pass@4", "eval/a/loss"}
    expected |= {"time/rollout", "time/reward", "time/score", "time/update", "time/evaluate", "time/checkpoint"}
    assert expected <= names


def test_sft_logs_the_cross_entropy_of_the_trained_tokens(tmp_path: Path) -> None:
    policy = tiny_policy()
    tokenizer, model = policy.tokenizer, policy.model
    total, count = 0.0, 0
    for example in EXAMPLES:
        prompt = tokenizer(example["prompt"])["input_ids"]
        ids = torch.tensor([prompt + tokenizer(example["completion"])["input_ids"] + [tokenizer.eos_token_id]])
        with torch.no_grad():
            table = torch.log_softmax(model(ids).logits[0].double(), -1)
        total -= float(table[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None]).sum())
        count += ids.shape[1] - len(prompt)
    result = run_sft(tmp_path / "run", model=pair(policy), training={"steps": 1, "batch_size": 64})
    assert metrics(result.folder)[0]["loss"] == pytest.approx(total / count, rel=1e-5)
    assert metrics(result.folder)[0]["num_tokens"] == count


def test_sft_learns_its_examples_and_splitting_changes_no_weight(tmp_path: Path) -> None:
    whole = run_sft(tmp_path / "whole", training={"steps": 12, "batch_size": 12})
    split = run_sft(
        tmp_path / "split", training={"steps": 12, "batch_size": 12, "micro_batch_tokens": 20, "packing": "pack"}
    )
    losses = [record["loss"] for record in metrics(whole.folder)]
    assert losses[-1] < 0.7 * losses[0]
    assert losses == pytest.approx([record["loss"] for record in metrics(split.folder)], rel=1e-4)


def test_sft_goes_through_its_data_as_often_as_epochs_say(tmp_path: Path) -> None:
    result = run_sft(tmp_path / "run", training={"epochs": 2.5, "batch_size": 9})
    assert result.summary["steps"] == 10
    assert [record["epoch"] for record in metrics(result.folder)][-1] == 2.5


def test_the_same_seed_gives_the_same_sft_run_and_another_seed_another(tmp_path: Path) -> None:
    first, second, other = (
        metrics(run_sft(tmp_path / name, seed=seed, training={"steps": 4, "batch_size": 8}).folder)
        for name, seed in (("first", 1), ("second", 1), ("other", 2))
    )
    assert first == second
    assert first != other


# ------------------------------------------------------------------------------------------------ evaluation, early stop


def test_several_named_sets_are_each_evaluated(tmp_path: Path) -> None:
    evaluation = {"data": {"seen": ROWS[:6], "new": HELD_OUT}, "every": 2, "max_new_tokens": 4}
    result = run_rl(tmp_path / "run", training={"steps": 3}, evaluation=evaluation)
    evaluated = [record["step"] for record in metrics(result.folder) if "eval/seen/accuracy" in record]
    assert evaluated == [0, 2, 3]
    assert all("eval/new/accuracy" in record for record in metrics(result.folder) if record["step"] in evaluated)
    assert {"seen/accuracy", "new/accuracy"} <= result.summary["after"].keys()
    samples = json.loads((result.folder / "samples.json").read_text())
    assert [row["prompt"] for row in samples["before"]] == [row["prompt"] for row in ROWS[:6]]


def test_a_run_ends_once_its_accuracy_reaches_stop_at(tmp_path: Path) -> None:
    evaluation = {"data": HELD_OUT, "every": 2, "max_new_tokens": 4, "stop_at": 1.0}
    result = run_rl(tmp_path / "run", reward=[ALWAYS, even], training={"steps": 9}, evaluation=evaluation)
    assert result.summary["steps"] == 2
    assert result.summary["stopped"] == "evaluation reached 1.000, at least stop_at=1.0"
    assert (result.folder / "checkpoints" / "last").resolve().name == "step_2"


def test_a_run_ends_when_its_patience_does(tmp_path: Path) -> None:
    evaluation = {"data": HELD_OUT, "every": 1, "max_new_tokens": 4, "patience": 3}
    result = run_rl(tmp_path / "run", reward=[ALWAYS, even], training={"steps": 9}, evaluation=evaluation)
    assert result.summary["steps"] == 3
    assert result.summary["stopped"] == "3 evaluations without a better one (patience)"


def test_sft_is_patient_with_its_held_out_loss(tmp_path: Path) -> None:
    result = run_sft(
        tmp_path / "run",
        training={"steps": 60, "batch_size": 36},
        optimizer={"learning_rate": 0.5},
        evaluation={"data": EXAMPLES[:8], "every": 1, "patience": 2},
    )
    losses = [record["eval/eval/loss"] for record in metrics(result.folder)]
    assert result.summary["stopped"] == "2 evaluations without a better one (patience)"
    assert min(losses) == losses[-3]
    assert len(losses) < 60


@pytest.mark.parametrize(
    ("evaluation", "culprit"),
    [
        ({"patience": 2}, "evaluation.patience 2"),
        ({"stop_at": 0.5, "data": HELD_OUT}, "evaluation.stop_at 0.5"),
        ({"stop_at": 0.5, "data": EXAMPLES, "every": 1}, "evaluation.stop_at compares an accuracy"),
    ],
)
def test_an_early_stop_that_cannot_happen_is_refused(evaluation: Any, culprit: str, tmp_path: Path) -> None:
    with pytest.raises(reinlm.InputError, match=culprit):
        run_sft(tmp_path / "run", evaluation=evaluation)
    assert not (tmp_path / "run").exists()


def test_an_evaluation_without_a_verdict_judges_nothing(tmp_path: Path) -> None:
    def nothing_new(prompts: list[str], completions: list[str], **_: Any) -> list[float | None]:
        scores = even(completions)
        return [None if prompt in PROMPTS else score for prompt, score in zip(prompts, scores, strict=True)]

    evaluation = {"data": HELD_OUT, "every": 1, "max_new_tokens": 4, "patience": 1}
    result = run_rl(tmp_path / "run", reward=nothing_new, training={"steps": 3}, evaluation=evaluation)
    assert result.summary["steps"] == 3
    assert result.summary["after"]["eval/mean_length"] > 0
    assert "eval/accuracy" not in result.summary["after"]


# ------------------------------------------------------------------------------------------------ checkpoints


def test_the_best_checkpoint_is_the_one_whose_own_weights_were_judged_best(tmp_path: Path) -> None:
    evaluation = {"data": HELD_OUT, "every": 3, "max_new_tokens": 4, "samples": 8}
    settings = {"training": {"steps": 12}, "evaluation": evaluation, "run": {"save_every": 2, "keep_last": 9}}
    result = run_rl(tmp_path / "run", **settings)
    accuracy = {r["step"]: r["eval/eval/accuracy"] for r in metrics(result.folder) if "eval/eval/accuracy" in r}
    manifests = {
        int(path.name.removeprefix("step_")): json.loads((path / "checkpoint.json").read_text())["metric"]
        for path in (result.folder / "checkpoints").glob("step_*")
    }
    assert manifests == {step: accuracy.get(step) for step in (2, 4, 6, 8, 10, 12)}
    best = max((step for step in (6, 12)), key=lambda step: (accuracy[step], -step))
    assert os.readlink(result.folder / "checkpoints" / "best") == f"step_{best}"


def greedy(model: Any, tokenizer: Any) -> list[list[int]]:
    """`generate` itself, prompt by prompt."""
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        with torch.no_grad():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=8,
                do_sample=False,
                eos_token_id=1,
                pad_token_id=0,
            )
        found.append(out[0, ids.shape[1] :].tolist())
    return found


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_the_final_checkpoint_answers_as_the_trained_model(lora: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = str(saved_model(tmp_path / "model", layers=2))
    first = reinlm.load_policy(path)
    result = run_rl(
        tmp_path / "run",
        model={"path": path, "lora": lora},
        training={"steps": 6},
        optimizer={"learning_rate": 2e-2},
    )
    last = result.folder / "checkpoints" / "last"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(last), AutoTokenizer.from_pretrained(last)
    trained = greedy(result.policy.model.eval(), result.policy.tokenizer)
    assert greedy(model, tokenizer) == trained
    assert greedy(first.model, first.tokenizer) != trained
    answers = reinlm.generate(str(last), PROMPTS, sampling={"temperature": 0, "max_new_tokens": 8})
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in trained]
    assert [answer.completions for answer in answers] == [(text,) for text in texts]


def test_a_resumed_run_needs_the_model_that_it_started_from(tmp_path: Path) -> None:
    """The reference of its KL is that model: another one would tie the policy to something else without a word."""
    policy = tiny_policy()
    settings = {"training": {"steps": 4}, "run": {"save_every": 2}}
    with pytest.raises(RuntimeError, match="stop here"):
        run_rl(tmp_path / "run", model=pair(policy), reward=_stops_after(2), **settings)
    with pytest.raises(reinlm.InputError, match="reference"):
        run_rl(tmp_path / "run", model=pair(policy), reward=_stops_after(9), resume=True, **settings)
    resumed = run_rl(tmp_path / "run", model=pair(tiny_policy()), reward=_stops_after(9), resume=True, **settings)
    whole = run_rl(tmp_path / "whole", reward=_stops_after(9), **settings)
    assert metrics(resumed.folder) == metrics(whole.folder)
    ours, theirs = weights(resumed.policy.model), weights(whole.policy.model)
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


def _stops_after(step: int) -> dict[str, Any]:
    def stops(completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
        if trainer_state.global_step >= step:
            raise RuntimeError("stop here")
        return even(completions)

    return {"functions": stops, "retry_delay": 0.01}


def test_a_run_that_is_over_can_be_resumed_and_stays_as_it_is(tmp_path: Path) -> None:
    first = run_rl(tmp_path / "run", training={"steps": 2}, evaluation={"data": HELD_OUT, "max_new_tokens": 4})
    before = (first.folder / "metrics.jsonl").read_bytes()
    again = run_rl(
        tmp_path / "run", training={"steps": 2}, evaluation={"data": HELD_OUT, "max_new_tokens": 4}, resume=True
    )
    assert (again.folder / "metrics.jsonl").read_bytes() == before
    assert again.summary == first.summary
    assert math.isfinite(again.summary["train_seconds"])
