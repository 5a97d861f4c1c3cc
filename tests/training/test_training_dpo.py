"""`reinlm dpo`: what a step learns, from which reference, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import reinlm
from reinlm.algorithms import PREFERENCES, preference_algorithm
from reinlm.errors import InputError
from reinlm.loop import Control, Updated
from reinlm.objectives.calibration import auc
from reinlm.runs import read_metrics, read_run, without_clocks
from reinlm.training.judged_step import compared_of, mismatched_examples, outcomes, with_interval
from reinlm.training.likelihoods import FallingLikelihoods
from tiny_runs import saved, tiny

ROWS: list[dict[str, Any]] = [
    {"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(a + b + 1) * (1 + a % 2), "margin": 1.0 + b % 3}
    for a in (1, 3, 4, 7)
    for b in (2, 5, 8, 12)
]
LABELS = [
    {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
    for row in ROWS
    for side in ("chosen", "rejected")
]
RANKED = [{"prompt": row["prompt"], "answers": [row["chosen"], row["rejected"], "0"]} for row in ROWS]
SETTINGS: dict[str, Any] = {
    "training": {"steps": 3, "batch_size": 4},
    "optimizer": {"learning_rate": 1e-2},
    "run": {"save_every": 0, "trackers": []},
    "seed": 3,
    "quiet": True,
}


def trainer(folder, data: Any = ROWS, model: Any = None, **changes):
    merged = {**SETTINGS, **changes}
    for name in ("training", "run", "optimizer"):
        merged[name] = {**SETTINGS[name], **changes.get(name, {})}
    return reinlm.DPOTrainer(tiny() if model is None else model, data, output=folder, **merged)


def steps(folder, data=ROWS, count=3, **changes):
    with trainer(folder, data, **changes) as made:
        return [without_clocks(made.step()) for _ in range(count)]


def weights(made: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in made.policy.model.state_dict().items()}


@pytest.mark.parametrize("name", sorted(PREFERENCES))
def test_every_algorithm_raises_the_better_answers_above_the_worse(name: str, tmp_path: Path) -> None:
    data = LABELS if preference_algorithm(name).takes == "labels" else ROWS
    slow = {"learning_rate": 3e-3} if name in ("ipo", "sppo") else {"learning_rate": 1e-2}
    found = steps(tmp_path / "run", data, 8, algorithm=name, training={"steps": 8, "batch_size": 16}, optimizer=slow)
    assert found[-1]["rewards/margins"] > found[0]["rewards/margins"]
    assert found[-1]["logprobs/chosen"] - found[-1]["logprobs/rejected"] > (
        found[0]["logprobs/chosen"] - found[0]["logprobs/rejected"]
    )


def test_the_first_step_is_the_formula_on_sums_over_the_answers(tmp_path: Path) -> None:
    """At the start policy and reference agree, so that h = 0; a second reference makes it another number."""
    other = saved(tmp_path / "other", seed=1)
    (row,) = steps(tmp_path / "run", count=1, reference=other, training={"batch_size": 16})
    sums: dict[str, list[float]] = {"policy": [], "reference": []}
    for name, seed in (("policy", 0), ("reference", 1)):
        model, tokenizer = tiny(seed)
        for side in ("chosen", "rejected"):
            for pair in ROWS:
                text, answer = pair["prompt"], pair[side]
                prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
                whole = [*prompt, *tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
                with torch.no_grad():
                    logits = model(torch.tensor([whole])).logits[0].log_softmax(-1)
                sums[name].append(sum(float(logits[i - 1, whole[i]]) for i in range(len(prompt), len(whole))))
    policy, reference = (np.array(sums[name]).reshape(2, -1) for name in ("policy", "reference"))
    difference = (policy - reference)[0] - (policy - reference)[1]
    assert row["loss"] == pytest.approx(np.log1p(np.exp(-0.1 * difference)).mean(), rel=1e-6)
    assert row["rewards/accuracies"] == pytest.approx((difference > 0).mean())
    assert row["logprobs/rejected"] == pytest.approx(policy[1].mean())
    assert row["log_ratios/chosen"] == pytest.approx((policy - reference)[0].mean())
    assert row["rewards/margins"] == pytest.approx(0.1 * difference.mean())


@pytest.mark.parametrize("changes", [{"micro_batch_tokens": 12}, {"packing": "pad"}, {"packing": "pack"}])
@pytest.mark.parametrize("name", ["dpo_sft", "kto", "bco"])
def test_micro_batches_and_packing_change_nothing(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    kl = {"base": name, "kl": {"estimator": "k3", "coefficient": 0.1}}
    one = steps(tmp_path / "one", algorithm=kl)
    other = steps(tmp_path / "other", algorithm=kl, training=changes)
    for a, b in zip(one, other, strict=True):
        assert a == pytest.approx(b, rel=1e-6, abs=1e-9)


def test_a_ranking_is_all_its_pairs_which_share_its_weight(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", RANKED) as made:
        items: Any = compared_of(made.run.data.judged.take([3, 5]), "pairs")
        assert [*zip(items.first.tolist(), items.second.tolist(), strict=True)] == [
            (0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5),
        ]  # fmt: skip
        assert items.weight.tolist() == pytest.approx([1 / 6] * 6)
        made.step()


def test_a_weight_of_the_data_is_a_share_of_the_loss(tmp_path: Path) -> None:
    whole = {"training": {"batch_size": 2, "steps": 1}}
    rows = [{**ROWS[0], "weight": 3.0}, {**ROWS[1], "weight": 1.0}]
    other = saved(tmp_path / "other", seed=1)
    (weighed,) = steps(tmp_path / "a", rows, 1, reference=other, **whole)
    (one,) = steps(tmp_path / "b", [ROWS[0]], 1, reference=other, **whole)
    (two,) = steps(tmp_path / "c", [ROWS[1]], 1, reference=other, **whole)
    assert weighed["loss"] == pytest.approx(0.75 * one["loss"] + 0.25 * two["loss"])


def test_pairs_are_two_labels_where_an_algorithm_takes_labels(tmp_path: Path) -> None:
    pairs = steps(tmp_path / "pairs", ROWS, 1, algorithm="kto", training={"batch_size": 16})
    labels = steps(tmp_path / "labels", LABELS, 1, algorithm="kto", training={"batch_size": 32})
    assert pairs[0]["loss"] == pytest.approx(labels[0]["loss"])
    assert pairs[0]["grad_norm"] == pytest.approx(labels[0]["grad_norm"], rel=1e-3)


# ------------------------------------------------------------------------------------------------ the reference


def test_the_reference_is_computed_once_and_kept_by_content(tmp_path: Path) -> None:
    cache: Any = {"training": {"reference_cache": str(tmp_path / "cache")}}
    first = steps(tmp_path / "a", **cache, eval_data=ROWS[:4])
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    assert len(files) == 2  # training data and held-out data
    again = steps(tmp_path / "b", **cache, eval_data=ROWS[:4])
    assert again == first == steps(tmp_path / "c", eval_data=ROWS[:4])
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == files
    steps(tmp_path / "d", count=1, model=tiny(seed=1), **cache)
    steps(tmp_path / "e", ROWS[1:], count=1, **cache)
    turned, tokenizer = tiny()
    turned.config.rms_norm_eps = 0.1  # the same weights compute something else
    steps(tmp_path / "f", count=1, model=(turned, tokenizer), **cache)
    assert len(list((tmp_path / "cache").iterdir())) == 5


def test_a_cache_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    cache: Any = {"training": {"reference_cache": str(tmp_path / "cache")}}
    steps(tmp_path / "a", count=1, **cache)
    (file,) = (tmp_path / "cache").iterdir()
    for values in (np.zeros(3), np.zeros((2, 2), np.int64)):
        np.save(file, values)
        with pytest.raises(InputError, match="log-probabilities are needed"):
            trainer(tmp_path / "b", **cache)
    file.write_bytes(b"no array")
    with pytest.raises(InputError, match="holds no log-probabilities"):
        trainer(tmp_path / "b", **cache)


def test_with_an_adapter_the_reference_is_the_model_without_it(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    model = {"path": folder, "lora": {"rank": 2}}
    with trainer(tmp_path / "run", model=model, optimizer={"learning_rate": 0.1}) as made:
        before = {name: value for name, value in weights(made).items() if "lora" not in name}
        found = [made.step() for _ in range(3)]
        after = weights(made)
    assert found[0]["log_ratios/chosen"] == pytest.approx(0.0, abs=1e-5)
    assert found[2]["log_ratios/chosen"] != pytest.approx(0.0, abs=1e-3)
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_reference_that_is_refreshed_follows_the_policy(tmp_path: Path) -> None:
    refresh = {"reference_refresh": {"every": 1, "mix": 1.0}}
    found = steps(tmp_path / "run", training={**refresh, "steps": 3})
    assert [row["log_ratios/chosen"] for row in found] == pytest.approx([0.0] * 3, abs=1e-6)


@pytest.mark.parametrize("estimator", ["k2", "k3", "full"])
def test_a_kl_holds_the_policy_at_the_reference(estimator: str, tmp_path: Path) -> None:
    free = steps(tmp_path / "free", count=6, training={"steps": 6})
    held = steps(
        tmp_path / "held", count=6, training={"steps": 6},
        algorithm={"base": "dpo", "kl": {"estimator": estimator, "coefficient": 10.0}},
    )  # fmt: skip
    assert held[-1]["kl/answers"] < 0.5 * free[-1]["kl/answers"]
    assert held[-1]["kl/reference"] > 0.0


# ------------------------------------------------------------------------------------------------ runs


@pytest.mark.parametrize(
    ("name", "data", "changes"),
    [
        ("dpo", ROWS, {}),
        ("bco", LABELS, {}),
        ("kto", LABELS, {}),
        ("simpo", RANKED, {}),
        ("ipo", ROWS, {"training": {"reference_refresh": {"every": 2, "mix": 0.5}}}),
    ],
)
def test_a_run_that_stops_and_goes_on_ends_bit_for_bit_as_one_that_does_not(
    name: str, data: Any, changes: dict[str, Any], tmp_path: Path
) -> None:
    folder = saved(tmp_path / "model")
    common = {**changes, "algorithm": name, "eval_data": data[:8], "evaluation": {"every": 2}}
    length = {**changes.get("training", {}), "steps": 5}
    with trainer(tmp_path / "whole", data, folder, **{**common, "training": length}) as whole:
        whole.train()
    with trainer(tmp_path / "parts", data, folder, **{**common, "training": length}) as made:
        made.step()
        made.step()
        made.save()
    with trainer(tmp_path / "parts", data, folder, **{**common, "training": length}, resume=True) as again:
        again.train()
    one, other = weights(whole), weights(again)
    assert all(torch.equal(value, other[key]) for key, value in one.items())
    logs = [read_metrics(tmp_path / part / "metrics.jsonl") for part in ("whole", "parts")]
    rows = [[without_clocks(row) for row in log if row["step"] > 2] for log in logs]
    assert rows[0] == rows[1]


def test_a_run_is_refused_another_reference_on_resume(tmp_path: Path) -> None:
    folder, other = saved(tmp_path / "model"), saved(tmp_path / "other", seed=1)
    with trainer(tmp_path / "run", model=folder, reference=other) as made:
        made.step()
        made.save()
    saved(tmp_path / "other", seed=2)
    with (
        pytest.raises(InputError, match="reference model is not the one"),
        trainer(tmp_path / "run", model=folder, reference=other, resume=True) as again,
    ):
        again.step()


def test_evaluation_on_held_out_pairs_has_an_interval_and_slices(tmp_path: Path) -> None:
    held_out = [{**row, "domain": "odd one" if index % 2 else "even"} for index, row in enumerate(ROWS)]
    other = saved(tmp_path / "other", seed=1)
    sets = {"data": {"test": {"path": held_out, "slices": ["domain"]}}}
    with trainer(tmp_path / "run", reference=other, evaluation=sets) as made:
        found = made.evaluate()
    parts = [found["eval/test/accuracy/domain=even"], found["eval/test/accuracy/domain=odd_one"]]
    assert found["eval/test/accuracy"] == pytest.approx(sum(parts) / 2)
    assert (
        0.0 <= found["eval/test/accuracy_low"] < found["eval/test/accuracy"] < found["eval/test/accuracy_high"] <= 1.0
    )
    assert found["eval/test/loss"] > 0.0


def test_a_run_keeps_once_that_both_likelihoods_fell(tmp_path: Path) -> None:
    """At this rate the policy leaves all answers of the data; a run resumed after the warning does not repeat it."""
    rows = [{"prompt": f"{a}+{b}=", "chosen": "12", "rejected": "21"} for a in (1, 3) for b in (2, 5)]
    fast: dict[str, Any] = {"training": {"steps": 14}, "optimizer": {"learning_rate": 0.1}}
    with trainer(tmp_path / "run", rows, **fast) as made:
        for _ in range(13):
            made.step()
        made.save()
    with trainer(tmp_path / "run", rows, resume=True, **fast) as again:
        again.train()
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    falls = {  # nats a token (two digits and the end) below the reference, over ten steps
        side: -np.convolve([row[f"log_ratios/{side}"] for row in records], np.ones(10) / 10, "valid") / 3
        for side in ("chosen", "rejected")
    }
    assert records[0]["rewards/accuracies"] == 0.5  # policy and reference are equal
    first = int(np.argmax(np.minimum(*falls.values()) > 0.1))
    (finding,) = read_run(tmp_path / "run")["findings"]
    assert first > 0  # not from the first ten steps on
    assert finding["step"] == first + 10
    chosen, rejected = (f"{falls[side][first]:.2f}" for side in ("chosen", "rejected"))
    assert finding["message"].startswith(
        f"both likelihoods fall: a token of the chosen answers is {chosen} nats below the reference, "
        f"one of the rejected {rejected};"
    )
    assert f"step {finding['step']}: both likelihoods fall" in (tmp_path / "run" / "report.html").read_text()


def test_rewards_that_differ_by_rounding_alone_count_half() -> None:
    assert outcomes(torch.tensor([1e-9, -3e-5, 0.2, -0.2]), torch.zeros(4)).tolist() == [0.5, 0.5, 1.0, 0.0]


def test_without_a_reference_both_likelihoods_are_held_against_the_first_ten_updates() -> None:
    said: list[str] = []

    class Heard(Control):
        def warn(self, message: str) -> None:
            said.append(message)

    falling, control = FallingLikelihoods(), Heard()

    def see(step: int, chosen: float, rejected: float) -> None:
        lengths = {"completions/chosen_length": 10.0, "completions/rejected_length": 10.0}
        metrics = {**lengths, "logprobs/chosen": chosen, "logprobs/rejected": rejected}
        falling.on_updated(Updated(step, metrics), control)

    for step in range(1, 21):
        see(step, -9.0 + step, -9.0 - 3 * step)
    assert not said
    for step in range(21, 41):
        see(step, -30.0, -90.0)
    (text,) = said
    assert "below the first 10 updates" in text


def test_kto_reads_every_prompt_with_an_answer_to_another_one(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", LABELS, algorithm="kto") as made:
        judged = made.run.data.judged
        others = mismatched_examples(judged, None)
        tokenizer = made.policy.tokenizer
        texts = [tokenizer.decode(one.token_ids[one.trained], skip_special_tokens=True) for one in others]
        prompts = [tokenizer.decode(one.token_ids[~one.trained], skip_special_tokens=True) for one in others]
    assert prompts == [row["prompt"] for row in LABELS]
    assert texts[0] == texts[1] == LABELS[2]["completion"]
    assert texts[-1] == LABELS[0]["completion"]
    one_prompt = [{"prompt": "1+1=", "completion": str(n), "label": n % 2 == 0} for n in range(6)]
    with pytest.raises(InputError, match="the data have one prompt"):
        trainer(tmp_path / "one", one_prompt, algorithm="kto")


def test_auc_and_intervals_are_those_worked_out_by_hand() -> None:
    assert auc(torch.tensor([0.9, 0.7, 0.4]), torch.tensor([0.7, 0.2])) == pytest.approx(0.75)
    assert math.isnan(auc(torch.tensor([1.0]), torch.tensor([])))
    mean, low, high = with_interval(torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64))
    assert (mean, low, high) == pytest.approx((0.75, 0.75 - 0.49, 1.0), abs=0.001)
    assert with_interval(torch.tensor([1.0])) == (1.0, 1.0, 1.0)


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        (LABELS, {}, "algorithm dpo learns from pairs or rankings, and the data hold labels"),
        (RANKED, {"algorithm": "kto"}, "algorithm kto learns from labels or pairs, and the data hold rankings"),
        ([{**ROWS[0], "tie": True}], {}, "every one of them is a tie"),
        (LABELS[::2], {"algorithm": "kto"}, "all 16 answers are labelled good"),
        (ROWS, {"algorithm": {"base": "dpo", "gamma": 1.0}}, "does not use 'gamma'"),
        (ROWS, {"algorithm": "grpo"}, "learns from rewards, not from judged answers"),
        (ROWS, {"algorithm": "simpo", "reference": "x"}, "reference has no effect: simpo reads no reference"),
        (ROWS, {"algorithm": "orpo", "training": {"reference_cache": "x"}}, "training.reference_cache has no effect"),
        (ROWS, {"run": {"rollouts_every": 3}}, "run.rollouts_every has no effect"),
        (
            [{key: value for key, value in row.items() if key != "margin"} for row in ROWS],
            {"algorithm": {"base": "dpo", "margin_weight": 1.0}},
            "there is no column margin",
        ),
        (
            ROWS,
            {"training": {"reference_cache": "x", "reference_refresh": {"every": 1}}},
            "training.reference_cache has no effect with training.reference_refresh",
        ),
    ],
)  # fmt: skip
def test_what_does_not_belong_together_is_refused(data: Any, changes: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        trainer(tmp_path / "run", data, **changes)
    assert message in caught.value.message
    assert not (tmp_path / "run").exists()


def test_unbalanced_labels_are_noted(tmp_path: Path) -> None:
    with trainer(tmp_path / "run", [*LABELS, *LABELS[::2]], algorithm="kto") as made:
        made.step()
    (note,) = json.loads((tmp_path / "run" / "run.json").read_text())["notes"]
    assert note.startswith("32 answers are labelled good and 16 bad: weighed, 2.00 to 1")


def test_dropout_of_a_model_that_has_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"training\.dropout has no effect: every dropout of the model is 0"):
        reinlm.dpo(
            tiny(),
            [{"prompt": "1=", "chosen": "2", "rejected": "3"}],
            training={"steps": 1, "dropout": True},
            output=tmp_path / "run",
            quiet=True,
        )
