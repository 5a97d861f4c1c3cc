"""What surrounds the update: resume, replay, filters, moving references, early stops, baselines, bonuses."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from training_helpers import (
    ROWS,
    Watched,
    even,
    metrics,
    moved,
    prepared,
    rl_settings,
    rl_task,
    run_rl,
    saved_model,
    steps,
    tiny_policy,
    weights,
)

import reinlm
from reinlm.algorithms import algorithm
from reinlm.batches import feedback, token_batch
from reinlm.errors import InputError
from reinlm.loop.run import ALONE
from reinlm.models import (
    LoraConfig,
    ModelConfig,
    character_tokenizer,
    load_policy,
    save_policy,
    tiny_model,
)
from reinlm.rollouts import sample_groups
from reinlm.runs import load_state
from reinlm.training.staleness import oldest_version

pytestmark = pytest.mark.no_cover

PLAIN = {"kl": None}


# ------------------------------------------------------------------------------------------------ resume


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "ppo_penalty", "critic": {"warmup_steps": 1}},
        {"algorithm": "ppo", "critic": {"backbone": "shared"}, "training": {"kl_learning_rate": 1e-3}},
        {"algorithm": "grpo", "training": {"reference_refresh": {"every": 1, "mix": 0.5}, "replay": {"groups": 2}}},
        {"algorithm": {"base": "grpo", "entropy": {"coefficient": 0.1, "target": 1.0}, "selection": "clip_cov"}},
        {"algorithm": "scaling_grpo", "model": "lora"},
        {"algorithm": "ppo", "model": "lora"},
    ],
    ids=str,
)
def test_a_run_in_two_parts_ends_as_the_whole_one(settings: dict[str, Any], tmp_path: Path) -> None:
    path = saved_model(tmp_path / "model")
    lora = settings.pop("model", None)
    changes: dict[str, Any] = {**settings, "run": {"save_every": 2}}
    changes["training"] = {**settings.get("training", {}), "steps": 4, "minibatches": 2}

    def run(name: str, resume: bool = False) -> Any:
        model = ModelConfig(path=str(path), lora=LoraConfig(rank=4) if lora else None).model_dump()
        recipe = {**rl_settings(**changes), "model": model, "data": {"path": ROWS}}
        return reinlm.rl(recipe=recipe, output=tmp_path / name, quiet=True, resume=resume)

    whole = run("whole")
    run("parts")
    folder = tmp_path / "parts"
    shutil.rmtree(folder / "checkpoints" / "step_4")
    for link in folder.glob("checkpoints/last"):
        link.unlink()
    (folder / "summary.json").unlink()
    again = run("parts", resume=True)
    assert metrics(again.folder) == metrics(whole.folder)
    ours, theirs = weights(again.policy.model), weights(whole.policy.model)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    mine, other = (load_state(run_.folder / "checkpoints" / "step_4")["run"] for run_ in (again, whole))
    assert mine["algorithm"] == other["algorithm"]
    if mine["critic"] is not None:
        learned, expected = mine["critic"]["weights"], other["critic"]["weights"]
        assert all(torch.equal(learned[name], expected[name]) for name in expected)


# ------------------------------------------------------------------------------------------------ which data


def test_earlier_groups_join_a_batch_with_the_samplers_log_probabilities() -> None:
    task = rl_task(
        tiny_policy(),
        algorithm("grpo", **PLAIN),
        reward=even,
        training={"minibatches": 2, "replay": {"groups": 3, "age": 2}, "steps": 6},
        optimizer={"learning_rate": 2e-2},
    )
    watched = Watched(task)
    logged = [watched.step(step) for step in range(1, 6)]
    assert [record["groups/replayed"] for record in logged] == [0, 3, 3, 3, 3]
    assert [len(batch.groups) for batch in watched.batches] == [4, 7, 7, 7, 7]
    assert all(group in watched.batches[0].groups for group in watched.batches[1].groups[4:])
    assert logged[0]["staleness/max"] == 0 < logged[1]["staleness/max"]
    assert logged[2]["ratio/max"] > 1.01
    assert task.replay is not None
    assert {oldest_version(group) for group in task.replay.kept} == {4, 6, 8}  # of the steps 3, 4 and 5
    task.engine.update(None, task.state.updates)
    groups = [*task.source.collect(6).kept, *task.replay.draw(6, task.state.updates)]
    batch = token_batch(groups)
    made, _ = task.updater.prepare(batch, feedback(groups, batch.layout))
    rollout, earlier = batch.columns["rollout_logprobs"], batch.layout.index("group") >= 4
    assert made.old is not None
    assert torch.equal(made.old[earlier], rollout[earlier])
    assert 0.0 < float((made.old - rollout)[~earlier].abs().max()) < 1e-4


def test_a_greedy_answer_is_the_baseline_of_its_prompt() -> None:
    task = rl_task(tiny_policy(), algorithm("grpo", advantage="greedy_baseline", kl=None), reward=even)
    kept, batch, made, _ = prepared(task)
    episodes = task.source.episodes
    greedy = replace(episodes, sampling=replace(episodes.sampling, temperature=0.0), seed=9)
    for group in kept:
        (answer,) = sample_groups(greedy, [group.group.task], group_size=1, tag="t").groups
        assert group.baseline == even([str(answer.group.rollouts[0].completion)])[0]
    expected = [r - group.baseline for group in kept for r in group.returns]  # type: ignore[operator]
    first = batch.layout.offset("episode") == 0
    assert made.advantages[first].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("overlong", ["filter_before_baseline", "filter_after_baseline"])
def test_answers_that_were_cut_off_reach_no_loss(overlong: str) -> None:
    policy = tiny_policy()
    task = rl_task(policy, algorithm("grpo", overlong=overlong, **PLAIN), reward=even)
    _, batch, made, found = prepared(task)
    cut = made.feedback.truncated
    assert cut is not None
    assert found["completions/untrained"] == int(cut.sum()) > 0
    tokens = task.updater.update(1, batch, made).tokens
    reached = torch.stack([~values.isnan() for values in tokens.values()])
    assert len(reached) > 0
    assert all(torch.equal(one, ~batch.layout.expand(cut, "episode")) for one in reached)


def test_a_batch_of_nothing_but_cut_off_answers_makes_no_update() -> None:
    policy = replace(tiny_policy(), stops=())
    before = weights(policy.model)
    task = rl_task(
        policy,
        algorithm("grpo", overlong="filter_before_baseline", kl={"controller": {"schulman": 0.01}}),
        reward=even,
        rollout={"max_new_tokens": 1},
        training={"minibatches": 2},
    )
    logged = task.step(1, ALONE).metrics
    assert (logged["updates/made"], logged["completions/untrained"]) == (0, 16)
    assert logged["num_tokens"] == 0
    assert not moved(policy, before)
    assert all(math.isfinite(value) for value in logged.values())
    assert task.state.kl_coefficients == (0.04,)
    assert (task.state.batches, task.state.updates) == (1, 0)


def test_a_missing_end_costs_what_the_recipe_says(tmp_path: Path) -> None:
    result = run_rl(
        tmp_path / "run",
        reward={"name": "regex", "pattern": ""},
        algorithm={"base": "dr_grpo", "shapers": {"missing_end": 0.5}},
        training={"steps": 1},
    )
    (record,) = metrics(result.folder)
    assert record["rewards/shaping/mean"] == pytest.approx(-0.5 * record["completions/clipped_ratio"])
    assert record["completions/clipped_ratio"] > 0


# ------------------------------------------------------------------------------------------------ ties


def test_a_kl_in_the_reward_is_what_the_policy_and_its_reference_say(tmp_path: Path) -> None:
    task = rl_task(
        tiny_policy(seed=1),
        algorithm("reinforce_pp", kl={"coefficient": 0.5}),
        reward=even,
        reference=saved_model(tmp_path / "other", seed=2),
    )
    _, _, made, _ = prepared(task)
    assert made.old is not None
    assert made.ref is not None
    expected = -0.5 * (made.old.double() - made.ref.double())
    assert made.feedback.token_rewards is not None
    assert made.feedback.token_rewards.tolist() == pytest.approx(expected.tolist(), abs=1e-9)
    assert expected.abs().max() > 0.01


def test_the_reference_follows_where_it_is_asked_to() -> None:
    policy = tiny_policy()
    task = rl_task(
        policy,
        algorithm("grpo"),
        reward=even,
        training={"steps": 4, "reference_refresh": {"every": 2}},
        optimizer={"learning_rate": 2e-2},
    )
    kl = [record["kl"] for record in steps(task, 4)]
    assert kl[0] == pytest.approx(0.0, abs=1e-9)
    assert kl[1] > 1e-4
    assert kl[2] == pytest.approx(0.0, abs=1e-9)
    assert kl[3] > 1e-4


def test_a_kl_over_the_vocabulary_is_measured_and_pulls(tmp_path: Path) -> None:
    other = saved_model(tmp_path / "other", seed=2)
    chosen = algorithm("grpo", kl={"estimator": "full", "coefficient": 1.0})
    task = rl_task(
        tiny_policy(seed=1), chosen, reward=lambda completions, **_: [1.0] * len(completions), reference=other
    )
    first = task.step(1, ALONE).metrics["kl/full"]
    later = [task.step(step, ALONE).metrics["kl/full"] for step in range(2, 12)]
    assert first > 0.01
    assert later[-1] < first


def test_ppos_penalty_follows_what_was_measured_after_the_last_update() -> None:
    task = rl_task(
        tiny_policy(),
        algorithm("ppo_penalty"),
        reward=even,
        training={"minibatches": 2, "passes": 2, "steps": 4},
        optimizer={"learning_rate": 2e-2},
    )
    coefficient = 1.0
    for step in range(1, 5):
        logged = task.step(step, ALONE).metrics
        assert logged["kl/old_coefficient"] == coefficient
        kl = logged["kl/old"]
        coefficient *= 0.5 if kl < 0.01 / 1.5 else 2.0 if kl > 0.015 else 1.0
        assert task.state.kl_coefficients == (0.05, coefficient)
        assert logged["kl/old_per_sequence"] > kl
        assert logged["kl/coefficient"] == 0.05
    assert kl > 0.0


def test_an_adaptive_tie_to_the_reference_reads_the_batchs_divergence(tmp_path: Path) -> None:
    chosen = algorithm("rloo", kl={"coefficient": 0.2, "controller": {"ziegler": [1e-9, 10]}})
    other = saved_model(tmp_path / "other", seed=2)
    task = rl_task(tiny_policy(seed=1), chosen, reward=even, reference=other)
    logged = task.step(1, ALONE).metrics
    assert logged["kl/reference_per_sequence"] > logged["kl/reference"] > 0.0
    assert task.state.kl_coefficients[0] == pytest.approx(0.2 * (1 + 0.2 * 16 / 10))


# ------------------------------------------------------------------------------------------------ how far


def test_updates_end_where_the_policy_has_gone_too_far() -> None:
    def run(target: float | None) -> tuple[Mapping[str, float], Any]:
        policy = tiny_policy()
        task = rl_task(
            policy,
            algorithm("grpo", **PLAIN),
            reward=even,
            training={"minibatches": 2, "passes": 4, "target_kl": target},
            optimizer={"learning_rate": 3e-2},
        )
        return task.step(1, ALONE).metrics, task

    free, _ = run(None)
    held, task = run(1e-3)
    assert (free["updates/made"], free["updates/stopped"]) == (8, 0)
    assert (held["updates/stopped"], task.state.updates) == (1, held["updates/made"])
    assert 1 <= held["updates/made"] < 8
    assert held["approx_kl"] <= 1.5e-3
    assert all(p.grad is None for p in task.policy.model.parameters())
    wide, _ = run(100.0)
    assert wide["updates/made"] == 8


def test_the_learning_rate_follows_the_divergence() -> None:
    def rates(target: float) -> list[float]:
        task = rl_task(
            tiny_policy(),
            algorithm("grpo", **PLAIN),
            reward=even,
            training={"minibatches": 2, "steps": 3, "kl_learning_rate": target},
        )
        return [record["learning_rate"] for record in steps(task, 3)]

    assert rates(1e-12) == pytest.approx([5e-3, 5e-3 / 1.5, 5e-3 / 2.25])
    assert rates(10.0) == pytest.approx([5e-3, 5e-3 * 1.5, 5e-3 * 2.25])


# ------------------------------------------------------------------------------------------------ switches


def test_every_switch_of_an_update_runs_and_says_what_it_did() -> None:
    chosen = algorithm(
        "scaling_grpo",
        corrections=[{"truncated": 2.0}, "self_normalized"],
        selection={"kl_cov": {"fraction": 0.2}},
        entropy={"coefficient": 0.05},
        sequence_mask={"threshold": 0.0},
        ratio={"token": "old"},
    )
    task = rl_task(tiny_policy(), chosen, reward=even, training={"minibatches": 2, "steps": 2})
    logged = steps(task, 2)[-1]
    assert logged["selection/selected"] == pytest.approx(0.2, abs=0.05)
    assert logged["correction/mean"] == pytest.approx(1.0, abs=1e-6)
    assert logged["correction/effective_samples"] == pytest.approx(1.0, abs=1e-4)
    assert 0.0 < logged["sequence_mask/dropped"] < 1.0
    assert logged["entropy/coefficient"] == 0.05
    assert all(math.isfinite(value) for value in logged.values())


def test_an_entropy_bonus_keeps_the_entropy_up(tmp_path: Path) -> None:
    found = {}
    for coefficient in (1e-9, 3.0):
        entropy = {"coefficient": coefficient}
        result = run_rl(
            tmp_path / str(coefficient),
            algorithm={"base": "grpo", "kl": None, "entropy": entropy},
            training={"steps": 12},
        )
        found[coefficient] = metrics(result.folder)[-1]["entropy"]
    assert found[3.0] > found[1e-9] + 0.05


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("grpo", {"critic": {"warmup_steps": 1}}, "critic has no effect: grpo trains none"),
        (
            "dapo",
            {"training": {"reference_refresh": {"every": 1}}},
            "training.reference_refresh has no effect: dapo keeps",
        ),
        ("ppo", {"critic": {"backbone": "shared", "path": "x"}}, "critic.path x has no effect on a shared backbone"),
        ("ppo", {"critic": {"backbone": "other"}}, "critic.backbone"),
        ("grpo", {"training": {"replay": {"age": 3}}}, "training.replay.groups"),
        ("grpo", {"training": {"target_kl": 0.0}}, "training.target_kl"),
        ("grpo", {"training": {"reference_refresh": {"every": 1, "mix": 0.0}}}, "training.reference_refresh.mix"),
    ],
)
def test_settings_without_effect_or_out_of_range_are_refused(
    name: str, changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        run_rl(tmp_path / "run", algorithm=name, **changes)
    assert told in error.value.message
    assert not (tmp_path / "run").exists()


def test_a_critic_with_other_tokens_and_a_moving_adapter_are_refused(tmp_path: Path) -> None:
    tokenizer = character_tokenizer("abc")
    save_policy(load_policy((tiny_model("qwen3", vocab_size=len(tokenizer)), tokenizer)), tmp_path / "other")
    with pytest.raises(InputError, match="reads other tokens than the policy"):
        run_rl(tmp_path / "run", algorithm="ppo", critic={"path": str(tmp_path / "other")})
    path = saved_model(tmp_path / "model")
    recipe = {
        **rl_settings(training={"steps": 1, "reference_refresh": {"every": 1}}),
        "model": {"path": str(path), "lora": {"rank": 2}},
        "data": {"path": ROWS},
    }
    with pytest.raises(InputError, match="has its own backbone as the reference"):
        reinlm.rl(recipe=recipe, output=tmp_path / "lora", quiet=True)


RUNGS = (
    "reinforce",
    "rloo",
    "reinforce_pp",
    "ppo",
    "dr_grpo",
    "gspo_token",
    "sapo",
    "cispo",
    "raft_pp",
    "reinforce_rej",
)


@pytest.mark.parametrize("name", RUNGS)
def test_every_rung_trains_and_moves_the_policy(name: str) -> None:
    policy = tiny_policy()
    before = weights(policy.model)
    task = rl_task(policy, algorithm(name, filters=[]), reward=even, training={"minibatches": 2, "steps": 2})
    logged = steps(task, 2)
    assert moved(policy, before)
    assert all(math.isfinite(value) for record in logged for value in record.values())
    assert task.state.updates == 4
