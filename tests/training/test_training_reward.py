"""`reinlm reward`: what a model of judged answers learns, how it is measured, saved, resumed, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_helpers import saved_model

import reinlm
from reinlm.data import JudgedDataConfig, load_judged
from reinlm.errors import InputError
from reinlm.models import (
    ModelConfig,
    RewardHeads,
    character_tokenizer,
    load_policy,
    load_reward_model,
    new_reward_model,
    save_policy,
    tiny_model,
)
from reinlm.objectives import auc
from reinlm.objectives.intervals import wilson_interval
from reinlm.runs import read_metrics, without_clocks
from reinlm.training.reward_config import RewardLossConfig
from reinlm.training.reward_loss import UnitTargets, settled_loss, unit_losses
from reinlm.training.reward_report import held_out_figures
from reinlm.training.reward_tables import held_out_tables
from reinlm.training.reward_training import BalancedOrder

pytestmark = pytest.mark.no_cover

SETTINGS: dict[str, Any] = {
    "optimizer": {"learning_rate": 3e-3},
    "training": {"steps": 4, "batch_size": 8},
    "run": {"trackers": []},
    "quiet": True,
}


def rule(text: str) -> int:
    """More 7 and fewer 3: content, and not length."""
    return text.count("7") - text.count("3")


def pairs(count: int, seed: int = 0, noise: float = 0.0) -> list[dict[str, Any]]:
    drawn = random.Random(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        one, two = ("".join(drawn.choices("0123456789", k=drawn.randint(1, 6))) for _ in range(2))
        if rule(one) == rule(two):
            continue
        if (rule(one) < rule(two)) != (drawn.random() < noise):
            one, two = two, one
        rows.append({"prompt": f"{len(rows) % 10}=", "chosen": one, "rejected": two, "kind": "ab"[len(rows) % 2]})
    return rows


def train(folder: Path, rows: Any, **changes: Any) -> Any:
    settings = dict(SETTINGS)
    for key, value in changes.items():
        old = settings.get(key)
        settings[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return reinlm.reward(str(saved_model(folder / "base")), rows, output=folder / "run", **settings)


def model_with_line_breaks(folder: Path) -> str:
    """A model that can read steps."""
    tokenizer = character_tokenizer("0123456789+=\n")
    model = tiny_model("qwen3", vocab_size=len(tokenizer), hidden_size=32, layers=1, heads=2, context=32)
    save_policy(load_policy((model, tokenizer)), folder)
    return str(folder)


def judged(rows: list[dict[str, Any]], **options: Any) -> Any:
    return load_judged(JudgedDataConfig(path=rows, **options), character_tokenizer("0123456789+=\n"))


def records(folder: Path) -> list[dict[str, Any]]:
    return [without_clocks(record) for record in read_metrics(folder / "metrics.jsonl")]


def test_a_rule_about_content_is_learned_from_labels_a_tenth_of_which_is_wrong(tmp_path: Path) -> None:
    held_out = {"path": pairs(200, seed=1), "slices": ["kind"]}
    result = train(
        tmp_path, pairs(600, noise=0.1), training={"steps": 60, "batch_size": 32}, eval_data={"test": held_out}
    )
    after = result.summary["after"]
    assert after["test/accuracy"] >= 0.85
    assert after["test/accuracy_low"] < after["test/accuracy"] < after["test/accuracy_high"]
    assert after["test/brier"] < 0.2 < result.summary["before"]["test/brier"]
    assert after["test/accuracy/kind=a"] != after["test/accuracy/kind=b"]
    assert after["test/accuracy_shorter"] > 0.8
    assert after["test/accuracy_longer"] > 0.8
    model = load_reward_model(str(result.folder / "checkpoints/last"))
    assert model.heads.reference is not None
    examples = judged(pairs(600, noise=0.1)).examples
    starts = [int(np.argmax(example.trained)) for example in examples[:512]]
    scores = model.score(model.batch([example.token_ids.tolist() for example in examples[:512]], starts)).reward
    assert scores.mean().abs() < 1e-4
    assert scores.std(correction=0) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"head": {"members": 3, "spread_penalty": 0.5, "dropout": 0.1}},
        {"training": {"length": "term"}},
        {"training": {"length": "balanced"}},
        {"model": {"lora": {"rank": 2}}},
    ],
    ids=["members", "length", "balanced", "lora"],
)
def test_a_resumed_run_is_bit_identical_to_one_that_was_not_stopped(tmp_path: Path, changes: Any) -> None:
    settings = {"eval_data": {"path": pairs(10, seed=1)}, **changes}
    base = str(saved_model(tmp_path / "base"))
    rows = pairs(20)

    def run(name: str, steps: int, resume: bool = False) -> Any:
        merged = {**SETTINGS, **settings}
        merged["training"] = {**SETTINGS["training"], **changes.get("training", {}), "steps": steps}
        merged["run"] = {**SETTINGS["run"], "save_every": 2}  # the whole run saves where the other one stops
        model = {"path": base, **changes.get("model", {})}
        return reinlm.reward(data=rows, output=tmp_path / name, resume=resume, **{**merged, "model": model})

    whole = run("whole", 4)
    run("parts", 2)
    parts = run("parts", 4, resume=True)
    assert records(whole.folder)[-1] == records(parts.folder)[-1]
    for name in ("model.safetensors", "config.json"):
        one, two = (result.folder / "checkpoints/last" / name for result in (whole, parts))
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("budget", [10, 40])
@pytest.mark.parametrize("packing", ["share", "pad"])
def test_the_step_is_the_same_in_micro_batches_of_any_size_and_layout(
    tmp_path: Path, budget: int, packing: str
) -> None:
    found = []
    for number, training in enumerate(({}, {"micro_batch_tokens": budget, "packing": packing})):
        folder = tmp_path / str(number)
        result = train(folder, pairs(16), training={"steps": 2, **training}, head={"members": 2})
        found.append((records(result.folder), result.policy.model.state_dict()))
    assert found[0][0][-1]["loss"] == pytest.approx(found[1][0][-1]["loss"], rel=1e-4)
    for name, weight in found[0][1].items():
        torch.testing.assert_close(weight, found[1][1][name], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    ("rows", "changes"),
    [
        ([{"prompt": f"{n}=", "answers": ["77", "7", "1", "3"]} for n in range(8)], {}),
        ([{"prompt": f"{n}=", "answers": ["77", "7", "1"]} for n in range(8)], {"loss": "bradley_terry"}),
        ([{"prompt": f"{n}=", "answers": ["77", "7", "1"]} for n in range(8)], {"loss": {"top": 1}}),
        ([{**row, "tie": n % 3 == 0} for n, row in enumerate(pairs(9))], {}),
        ([{**row, "tie": n % 3 == 0} for n, row in enumerate(pairs(9))], {"loss": "rao_kupper"}),
        ([{**row, "margin": 1.0} for row in pairs(8)], {"loss": {"label_smoothing": 0.1, "centering": 0.01}}),
        ([{"prompt": f"{n}=", "completion": str(n * 7), "label": n % 2 == 0} for n in range(8)], {}),
        (
            [{"prompt": f"{n}=", "completion": str(n * 7), "ratings": {"true": n % 3, "style": 1.0}} for n in range(8)],
            {"head": {"weights": {"true": 1.0, "style": 0.5}}, "normalize": None},
        ),
    ],
    ids=["rankings", "all_pairs", "top", "davidson", "rao_kupper", "margins", "labels", "ratings"],
)
def test_every_kind_of_judgement_is_learned(tmp_path: Path, rows: Any, changes: Any) -> None:
    result = train(tmp_path, rows, training={"steps": 12}, optimizer={"learning_rate": 1e-2}, **changes)
    losses = [record["loss"] for record in records(result.folder) if "loss" in record]
    assert losses[-1] < losses[0]
    load_reward_model(str(result.folder / "checkpoints/last"))


def test_a_process_head_learns_which_steps_are_right(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"{n % 10}=", "completions": ["77", "3", "17"], "labels": [True, False, True]} for n in range(16)
    ]
    result = reinlm.reward(
        model_with_line_breaks(tmp_path / "base"), rows, output=tmp_path / "run", eval_data={"path": rows[:4]},
        **{**SETTINGS, "training": {"steps": 20, "batch_size": 8}, "optimizer": {"learning_rate": 1e-2}},
    )  # fmt: skip
    assert result.summary["after"]["eval/accuracy"] == 1.0
    assert load_reward_model(str(result.folder / "checkpoints/last")).heads.reads == "steps"


def test_members_of_an_ensemble_learn_from_bootstrap_samples_of_their_own(tmp_path: Path) -> None:
    result = train(
        tmp_path, pairs(30), head={"members": 4}, training={"steps": 8}, eval_data={"path": pairs(9, seed=2)}
    )
    assert result.summary["after"]["eval/score/spread"] > 0
    model = load_reward_model(str(result.folder / "checkpoints/last"))
    assert torch.unique(model.head.weight[:, 0]).numel() == 4


def test_a_reward_model_given_in_python_is_trained_like_its_folder(tmp_path: Path) -> None:
    from training_helpers import pair, tiny_policy

    rows = pairs(12)
    folder = train(tmp_path, rows)
    given = reinlm.reward(pair(tiny_policy()), rows, output=tmp_path / "given", **SETTINGS)
    again = reinlm.reward(str(folder.folder), rows, output=tmp_path / "again", **SETTINGS)
    assert records(given.folder)[-1]["loss"] == pytest.approx(records(folder.folder)[-1]["loss"], rel=1e-5)
    assert records(again.folder)[0]["loss"] != records(folder.folder)[0]["loss"]


def test_balanced_batches_have_as_many_longer_better_answers_as_others() -> None:
    rows = [{"prompt": "1=", "chosen": "777" if n % 4 else "7", "rejected": "33"} for n in range(16)]
    data = judged(rows)
    order = BalancedOrder(data, seed=0)
    lengths = data.answer_lengths.reshape(-1, 2)
    for _ in range(5):
        taken = order.take(8)
        assert (lengths[taken, 0] > lengths[taken, 1]).sum() == 4
    again = BalancedOrder(data, seed=0)
    again.load_state_dict(order.state_dict())
    assert again.take(8) == order.take(8)
    alike = BalancedOrder(judged([{**row, "chosen": "77"} for row in rows]), seed=0)
    assert len(set(alike.take(16))) == 16


def test_figures_of_pairs_by_hand() -> None:
    data = judged(pairs(4))
    score = torch.tensor([1.0, 0.0, 0.2, 0.4, 0.5, 0.5, 0.3, -1.0])
    found = held_out_figures(data, score, torch.zeros(8), torch.ones(4))
    assert found["accuracy"] == 0.625  # ALGORITHMS: half a point for a tie
    assert found["accuracy_strict"] == 0.5
    assert found["ties"] == 0.25
    assert found["auc"] == pytest.approx(float(auc(score[::2], score[1::2])))
    differences = np.array([1.0, -0.2, 0.0, 1.3])
    expected = np.mean((1 - 1 / (1 + np.exp(-differences))) ** 2)
    assert found["brier"] == pytest.approx(expected)


def test_tables_of_held_out_pairs_by_hand() -> None:
    rows = [
        {"prompt": "1=", "chosen": "777", "rejected": "3", "kind": "a"},
        {"prompt": "1=", "chosen": "77", "rejected": "33", "kind": "a"},
        {"prompt": "2=", "chosen": "7", "rejected": "333", "kind": "b"},
    ]
    data = judged(rows, slices=["kind"])
    score = torch.tensor([2.0, 0.0, 0.0, 0.1, 1.0, 1.0])
    tables = held_out_tables(data, score)
    assert (tables["kind"], tables["cases"], tables["prompts"]) == ("pairs", 3, 2)
    first, last = tables["reliability"]  # σ(0.1) and σ(0) in the first bin: one wrong, one equal; σ(2) in another
    assert (first["from"], first["cases"], first["mean"]) == (0.5, 2, 0.25)
    assert first["predicted"] == pytest.approx((0.5 + 1 / (1 + np.exp(-0.1))) / 2)
    assert (last["from"], last["to"], last["mean"]) == pytest.approx((0.85, 0.9, 1.0))
    assert [(row["difference"], row["mean"]) for row in tables["by_length"]] == [(-2.0, 0.5), (0.0, 0.0), (2.0, 1.0)]
    assert [(row["value"], row["mean"], row["cases"]) for row in tables["by_slice"]["kind"]] == [
        ("a", 0.5, 2),
        ("b", 0.5, 1),
    ]
    found = held_out_figures(data, score, torch.zeros(6), torch.ones(3))
    assert found["accuracy"] == 0.5
    # the two pairs of the first prompt are one cluster of sum 1, the third is one of sum ½
    assert (found["accuracy_low"], found["accuracy_high"]) == wilson_interval(
        torch.tensor([1.0, 0.5]), torch.tensor([2.0, 1.0])
    )
    assert found["accuracy/kind=b"] == 0.5
    assert found["accuracy_low/kind=b"] < 0.5 < found["accuracy_high/kind=b"]


def test_labels_are_measured_against_the_chance_that_an_answer_is_good() -> None:
    data = judged([{"prompt": f"{n}=", "completion": "7", "label": n < 2} for n in range(4)])
    tables = held_out_tables(data, torch.tensor([3.0, -1.0, -1.0, -3.0]))
    assert "by_length" not in tables
    assert [(round(row["from"], 6), row["mean"], row["cases"]) for row in tables["reliability"]] == [
        (0.0, 0.0, 1), (0.2, 0.5, 2), (0.9, 1.0, 1)
    ]  # fmt: skip
    assert held_out_tables(judged([{"prompt": "1=", "completion": "7", "rating": 2.0}]), torch.ones(1)) == {}


def test_an_evaluation_leaves_its_tables_and_the_gap_with_intervals(tmp_path: Path) -> None:
    held_out = {"path": pairs(40, seed=1), "slices": ["kind"]}
    result = train(tmp_path, pairs(60), training={"steps": 2}, eval_data={"test": held_out})
    tables = json.loads((result.folder / "held_out.json").read_text())
    assert tables["step"] == 2
    assert sum(row["cases"] for row in tables["sets"]["test"]["reliability"]) == 40
    after = result.summary["after"]
    for name in ("gap_accuracy", "gap_loss"):
        assert after[f"test/{name}_low"] < after[f"test/{name}"] < after[f"test/{name}_high"]
    page = (result.folder / "report.html").read_text()
    for heading in (
        "Held-out judgements: test",
        "Reliability",
        "Accuracy against length difference",
        "Accuracy by kind",
    ):
        assert heading in page


def test_a_ranking_of_two_costs_what_the_pair_costs_and_a_margin_is_scaled() -> None:
    data = judged([{"prompt": "1=", "chosen": "7", "rejected": "3", "margin": 0.5}])
    scores, targets = torch.tensor([[1.2], [0.5]]), UnitTargets.of(data, {})
    plain = unit_losses(RewardLossConfig(name="bradley_terry", margin_scale=0.0), scores, targets)
    assert float(plain) == pytest.approx(0.4031860489)
    assert float(unit_losses(RewardLossConfig(name="plackett_luce"), scores, targets)) == pytest.approx(float(plain))
    assert float(
        unit_losses(RewardLossConfig(name="bradley_terry", margin_scale=2.0), scores, targets)
    ) == pytest.approx(0.8543552445)


@pytest.mark.parametrize(
    ("rows", "changes", "problem"),
    [
        (pairs(4), {"loss": "regression"}, "does not learn from pairs"),
        (pairs(4), {"loss": {"top": 2}}, "loss.top 2 has no effect on bradley_terry"),
        (pairs(4), {"loss": {"margin_scale": 2.0}}, "the data have no margin"),
        (pairs(4), {"loss": {"name": "plackett_luce", "tie": 2.0}}, "tie 2.0 has no effect on plackett_luce"),
        (pairs(4), {"loss": {"name": "rao_kupper", "tie": 1}}, "tie 1.0 must be more than 1 with rao_kupper"),
        (pairs(4), {"head": {"weights": {"true": 1.0}}}, "the data rate nothing"),
        (pairs(4), {"head": {"spread_penalty": 1.0}}, "no effect on one member"),
        (pairs(4), {"training": {"logprob_chunk": 8}}, "logprob_chunk 8 has no effect"),
        (pairs(4), {"data": {"slices": ["kind"]}}, "data.slices"),
        (pairs(4), {"run": {"rollouts_every": 3}}, "run.rollouts_every has no effect"),
        (pairs(4), {"eval_data": {"path": [{"prompt": "1=", "completion": "7", "label": True}]}}, "holds labels"),
        (
            [{"prompt": "1=", "completion": "7", "label": True}] * 2,
            {"training": {"length": "balanced"}},
            "balances pairs",
        ),
    ],
)
def test_what_cannot_have_an_effect_is_refused(tmp_path: Path, rows: Any, changes: Any, problem: str) -> None:
    data = {"path": rows, **changes.pop("data", {})}
    with pytest.raises(InputError, match=problem):
        train(tmp_path, data, **changes)


def test_steps_are_neither_pooled_nor_normalised_nor_corrected_for_length(tmp_path: Path) -> None:
    rows = [{"prompt": "1=", "completions": ["7"], "labels": [True]}] * 2
    model = model_with_line_breaks(tmp_path / "base")
    for changes, problem in (
        ({"head": {"pooling": "mean"}}, "head.pooling mean"),
        ({"normalize": {"answers": 9}}, "normalize has no effect"),
        ({"training": {"length": "term"}}, "training.length term"),
    ):
        with pytest.raises(InputError, match=problem):
            reinlm.reward(model, rows, output=tmp_path / "run", **{**SETTINGS, **changes})


def test_the_loss_of_auto_follows_the_data() -> None:
    tied = judged([{**row, "tie": n == 0} for n, row in enumerate(pairs(3))])
    assert settled_loss(RewardLossConfig(), tied).name == "davidson"
    assert settled_loss(RewardLossConfig(), judged(pairs(3))).name == "bradley_terry"


def test_a_mean_over_tokens_is_said_to_be_of_this_library_alone(tmp_path: Path) -> None:
    result = train(tmp_path, pairs(8), head={"pooling": "mean"}, training={"steps": 1})
    notes = json.loads((result.folder / "run.json").read_text())["notes"]
    assert any("transformers and TRL read the last token" in note for note in notes)


def test_heads_are_drawn_from_the_seed(tmp_path: Path) -> None:
    config = ModelConfig(path=str(saved_model(tmp_path / "base")))
    weights = [new_reward_model(config, RewardHeads(), seed=seed).head.weight for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


TIE = {"prompt": "1=", "chosen": "7", "rejected": "8", "tie": True}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{**TIE, "prompt": f"{n}="} for n in range(4)], "every one of the 4 pairs is a tie"),
        (
            [{"prompt": f"{n}=", "completion": "7", "label": True} for n in range(4)],
            "all 4 answers are labelled good, and logistic needs both",
        ),
        (
            [{"prompt": f"{n}=", "completion": "7", "rating": 3.0} for n in range(4)],
            "every rating of rating is 3",
        ),
    ],
)
def test_judgements_that_tell_nothing_apart_are_refused(tmp_path: Path, rows: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        train(tmp_path, rows)


def test_ties_are_left_out_and_counted_by_a_loss_that_learns_nothing_from_them(tmp_path: Path) -> None:
    rows = pairs(6)
    without = train(tmp_path / "without", rows, loss={"name": "bradley_terry"}, training={"steps": 1, "batch_size": 8})
    ties = [*rows[:3], TIE, {**TIE, "prompt": "2="}, *rows[3:]]
    with_ties = train(tmp_path / "ties", ties, loss={"name": "bradley_terry"}, training={"steps": 1, "batch_size": 8})
    first, second = (records(result.folder)[-1] for result in (without, with_ties))
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-5)
