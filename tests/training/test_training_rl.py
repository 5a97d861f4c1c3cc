"""One step of reinforcement learning, looked at from inside and against formulas worked out by hand."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_helpers import (
    HELD_OUT,
    ROWS,
    Watched,
    gradient,
    jsonl,
    metrics,
    naive_loss,
    pair,
    rl_settings,
    rl_task,
    run_rl,
    saved_model,
    tiny_policy,
    weights,
    z_scores,
)

import reinlm
from reinlm.algorithms import algorithm
from reinlm.batches import token_batch
from reinlm.config import dump_yaml
from reinlm.loop.run import ALONE
from reinlm.runs.schema import read_groups

UNCLIPPED = {"learning_rate": 5e-3, "max_grad_norm": None}


def even(completions: list[str], **_: Any) -> list[float]:
    """Digits that are even, as a share: rewards of many sizes."""
    return [sum(c in "02468" for c in text) / max(len(text), 1) for text in completions]


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_one_on_policy_update_of_grpo_is_the_papers_formula(temperature: float, tmp_path: Path) -> None:
    policy, reference = tiny_policy(seed=1), tiny_policy(seed=2).model
    task = rl_task(
        policy,
        algorithm("grpo"),
        reward=even,
        reference=saved_model(tmp_path / "reference", seed=2),
        rollout={"temperature": temperature},
        optimizer=UNCLIPPED,
    )
    watched = Watched(task, still=True)
    watched.step(1)
    kept = watched.batches[0].groups
    advantages = [a for group in kept for a in z_scores([r for r in group.returns if r is not None])]
    rollouts = [rollout for group in kept for rollout in group.group.rollouts]
    loss = naive_loss(policy.model, rollouts, advantages, temperature=temperature, reference=reference, beta=0.04)
    loss.backward()
    assert len(rollouts) == 16
    assert relative(watched.gradients[0], gradient(policy.model)) < 1e-5


def test_one_on_policy_update_of_dapo_is_a_mean_over_tokens() -> None:
    policy = tiny_policy(seed=1)
    watched = Watched(rl_task(policy, algorithm("dapo", filters=[]), reward=even, optimizer=UNCLIPPED), still=True)
    watched.step(1)
    kept = watched.batches[0].groups
    rollouts = [rollout for group in kept for rollout in group.group.rollouts]
    overlong = [
        -1.0 if rollout.length == 4 else 0.0 for rollout in rollouts
    ]  # the last fifth of 4 tokens is the fourth
    advantages = []
    for number, group in enumerate(kept):
        shaped = [reward + overlong[4 * number + i] for i, reward in enumerate(group.returns) if reward is not None]
        advantages += z_scores(shaped)
    naive_loss(policy.model, rollouts, advantages, token_mean=True).backward()
    assert len({rollout.length for rollout in rollouts}) > 1
    assert relative(watched.gradients[0], gradient(policy.model)) < 1e-5


def test_an_answer_without_reward_is_in_no_statistic_and_no_gradient() -> None:
    calls: list[int] = []

    def every_third_none(completions: list[str], **_: Any) -> list[float | None]:
        calls.append(len(completions))
        return [None if i % 3 == 0 else even([text])[0] for i, text in enumerate(completions)]

    policy = tiny_policy(seed=1)
    task = rl_task(policy, algorithm("grpo", kl=None), reward=every_third_none, optimizer=UNCLIPPED)
    watched = Watched(task, still=True)
    logged = watched.step(1)
    kept = watched.batches[0].groups
    rollouts, advantages, given = [], [], []
    for group in kept:
        known = [(rollout, r) for rollout, r in zip(group.group.rollouts, group.returns, strict=True) if r is not None]
        rollouts += [rollout for rollout, _ in known]
        advantages += z_scores([reward for _, reward in known])
        given += [reward for _, reward in known]
    assert (sum(calls), len(rollouts)) == (16, 8)  # two of the four answers of each group
    naive_loss(policy.model, rollouts, advantages).backward()
    assert relative(watched.gradients[0], gradient(policy.model)) < 1e-5
    assert logged["reward"] == pytest.approx(np.mean(given), abs=1e-12)
    assert math.isfinite(logged["advantage/std"])


def test_step_rewards_reach_the_tokens_up_to_their_step() -> None:
    def first_token(completion_ids: list[list[int]], **_: Any) -> list[Any]:
        return [reinlm.StepRewards([(0, float(ids[0])), (len(ids) - 1, 1.0)]) for ids in completion_ids]

    watched = Watched(rl_task(tiny_policy(), algorithm("grpo", kl=None), reward=first_token))
    watched.step(1)
    (prepared,) = watched.batches
    kept, found = prepared.groups, prepared.advantages
    assert found is not None
    start = 0
    for group in kept:
        rollouts = group.group.rollouts
        steps = z_scores([v for r in rollouts for v in (float(r.segments[0].chosen_ids[0]), 1.0)])
        for index, rollout in enumerate(rollouts):
            opening, closing = steps[2 * index], steps[2 * index + 1]
            expected = [opening + closing] + [closing] * (rollout.length - 1)
            assert found[start : start + rollout.length].tolist() == pytest.approx(expected, abs=1e-9)
            start += rollout.length
    assert float(watched.gradients[0].norm()) > 0


# ------------------------------------------------------------------------------------------------ who scores what, when


def test_old_logprobs_are_scored_only_where_a_batch_is_used_more_than_once() -> None:
    plain = algorithm("grpo", kl=None)
    for training, expected in (
        ({}, 0),
        ({"minibatches": 2}, 1),
        ({"passes": 2}, 1),
        ({"minibatches": 2, "passes": 3}, 1),
    ):
        task = rl_task(tiny_policy(), plain, reward=even, training=training)
        scored: list[bool] = []  # passes that are not an update's
        task.model.register_forward_pre_hook(lambda *_, scored=scored: scored.append(not torch.is_grad_enabled()))
        watched = Watched(task)
        watched.step(1)
        assert sum(scored) == expected
        assert len(watched.gradients) == training.get("minibatches", 1) * training.get("passes", 1)


def test_the_ratio_of_later_updates_is_against_the_weights_before_the_first(tmp_path: Path) -> None:
    once = {"steps": 2, "minibatches": 1, "passes": 1}
    result = run_rl(tmp_path / "run", training=once | {"passes": 3}, optimizer={"learning_rate": 2e-2})
    single = run_rl(tmp_path / "single", training=once, optimizer={"learning_rate": 2e-2})
    moved = metrics(result.folder)[0]
    assert moved["approx_kl"] > 1e-4
    assert moved["ratio/max"] > 1.05
    assert metrics(single.folder)[0]["ratio/max"] == 1.0
    assert metrics(single.folder)[0]["approx_kl"] == 0.0


def test_tokens_are_stamped_with_the_number_of_updates_before_them() -> None:
    task = rl_task(tiny_policy(), algorithm("grpo", kl=None), reward=even, training={"minibatches": 2})
    watched = Watched(task)
    for step in (1, 2, 3):
        watched.step(step)
    versions = [{r.versions for group in groups for r in group.group.rollouts} for groups in watched.sampled]
    assert versions == [{(0, 0)}, {(2, 2)}, {(4, 4)}]


@pytest.mark.parametrize("lora", [False, True])
def test_the_reference_stays_while_the_policy_moves(lora: bool, tmp_path: Path) -> None:
    from reinlm.models import LoraConfig, ModelConfig, load_policy

    path = str(saved_model(tmp_path / "model"))
    policy = load_policy(ModelConfig(path=path, lora=LoraConfig(rank=4) if lora else None))
    task = rl_task(policy, algorithm("grpo"), reward=even, optimizer={"learning_rate": 2e-2})
    learner, reference = task.updater.learner, task.anchors.reference
    assert reference is not None
    assert reference.shared == lora
    batch = token_batch(task.source.collect(1).kept)

    def scored() -> tuple[torch.Tensor, torch.Tensor]:
        return learner.forward(batch).scored, learner.forward(batch, anchor=reference.anchor).scored

    before, before_ref = scored()
    kl = [task.step(step, ALONE).metrics["kl"] for step in (1, 2, 3)]
    assert torch.equal(before_ref, before)
    assert torch.equal(scored()[1], before_ref)
    assert float((scored()[0] - before).abs().max()) > 0.01
    assert kl[0] == pytest.approx(0.0, abs=1e-9)
    assert kl[2] > 1e-5


def test_sampler_and_trainer_agree_on_every_log_probability(tmp_path: Path) -> None:
    result = run_rl(tmp_path / "run", rollout={"temperature": 0.8})
    for record in metrics(result.folder):
        assert 0 <= record["sampling/logprob_difference/max"] < 1e-4


# ------------------------------------------------------------------------------------------------ which data reach it


def test_dynamic_sampling_fills_the_batch_with_mixed_groups() -> None:
    def mixed_for_some(prompts: list[str], **_: Any) -> list[float]:
        return [float(i % 2) if prompt[0] in "01" else 1.0 for i, prompt in enumerate(prompts)]

    watched = Watched(rl_task(tiny_policy(), algorithm("dapo"), reward=mixed_for_some))
    logged = watched.step(1)
    kept, (sampled,) = watched.batches[0].groups, watched.sampled
    assert len(kept) == 4
    assert all(str(group.group.task.content)[0] in "01" for group in kept)
    assert logged["groups/attempts"] > 1
    assert logged["groups/dropped"] == len(sampled) - 4 > 0
    assert logged["samples"] == 4 * len(sampled)
    assert logged["reward"] == pytest.approx(np.mean([r for g in sampled for r in g.returns]))


def test_a_run_with_nothing_left_to_learn_ends_and_says_why(tmp_path: Path) -> None:
    recipe = rl_settings(
        model=str(saved_model(tmp_path / "model")),
        data=str(jsonl(tmp_path / "train.jsonl", ROWS)),
        reward={"functions": {"name": "regex", "pattern": ""}, "time_limit": None},
        algorithm="dapo",
    )
    (tmp_path / "rl.yaml").write_text(dump_yaml(recipe))
    from reinlm.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["rl", str(tmp_path / "rl.yaml"), "--output", str(tmp_path / "run"), "--quiet"])
    assert ended.value.code == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 1
    assert summary["stopped"] == "dapo kept none of 32 groups in 8 rounds: nothing to learn from"
    assert (tmp_path / "run" / "checkpoints" / "step_1" / "model.safetensors").is_file()


def test_the_overlong_penalty_reaches_the_advantages(tmp_path: Path) -> None:
    result = run_rl(
        tmp_path / "run",
        reward={"name": "regex", "pattern": ""},
        algorithm={"base": "dapo", "filters": [], "shapers": [{"soft_overlong": {"cache": 2}}]},
        training={"steps": 1},
    )
    groups, columns = read_groups(result.folder / "rollouts" / "step_1.jsonl")
    penalty = {1: 0.0, 2: 0.0, 3: -0.5, 4: -1.0}
    lengths = [[rollout.length for rollout in group.group.rollouts] for group in groups]
    expected = [z for row in lengths for z in z_scores([1.0 + penalty[length] for length in row])]
    first = np.cumsum([0, *(length for row in lengths for length in row)])[:-1]
    assert columns["update/advantages"][first].tolist() == pytest.approx(expected, abs=1e-6)
    assert all(group.returns == (1.0,) * 4 for group in groups)
    given = [event.value for group in groups for events in group.shaping for event in events]
    assert given == [penalty[length] for row in lengths for length in row]
    shaping = metrics(result.folder)[0]["rewards/shaping/mean"]
    assert shaping == pytest.approx(np.mean(given))


def test_a_batch_may_come_round_the_data_twice() -> None:
    def never_mixed_but_once(prompts: list[str], **_: Any) -> list[float]:
        return [float(i % 2) if prompt == ROWS[0]["prompt"] else 0.0 for i, prompt in enumerate(prompts)]

    task = rl_task(
        tiny_policy(),
        algorithm("dapo"),
        reward=never_mixed_but_once,
        rollout={"batch_size": 8, "max_attempts": 60},
    )
    watched = Watched(task)
    watched.step(1)
    kept = watched.batches[0].groups
    assert [group.group.task.content for group in kept] == [ROWS[0]["prompt"]] * 2
    texts = [[rollout.segments[0].token_ids.tolist() for rollout in group.group.rollouts] for group in kept]
    assert texts[0] != texts[1]


def test_answers_that_all_go_without_a_reward_stop_the_run(tmp_path: Path) -> None:
    with pytest.raises(reinlm.RunError, match=r"step 1: none of 16 .*reward functions give a number"):
        run_rl(tmp_path / "run", reward=lambda completions, **_: [None] * len(completions))


# ------------------------------------------------------------------------------------------------ how it is computed


def test_gradient_checkpointing_changes_no_gradient(tmp_path: Path) -> None:
    from reinlm.models import ModelConfig, disable_dropout, load_policy

    path = str(saved_model(tmp_path / "model", layers=2))
    found, modes = [], []
    for on in (False, True):
        policy = load_policy(ModelConfig(path=path, gradient_checkpointing=on))
        disable_dropout(policy.model)
        computed: list[bool] = []
        policy.model.model.layers[0].mlp.register_forward_pre_hook(
            lambda module, *_, computed=computed: computed.append(torch.is_grad_enabled() and module.training)
        )
        model = {"path": path, "gradient_checkpointing": on}
        watched = Watched(rl_task(policy, algorithm("grpo", kl=None), reward=even, model=model, optimizer=UNCLIPPED))
        computed.clear()
        watched.step(1)
        found.append(watched.gradients[0])
        modes.append(sum(computed))
        assert policy.model.training is False
    assert modes == [0, 2]  # in training mode, forward and again in the backward pass
    assert relative(found[1], found[0]) < 1e-6


def test_autocast_computes_in_bfloat16_and_stays_finite(tmp_path: Path) -> None:
    plain = run_rl(tmp_path / "plain", training={"steps": 3})
    low = run_rl(tmp_path / "low", training={"steps": 3, "autocast": "bfloat16"})
    records = metrics(low.folder)
    assert all(math.isfinite(value) for record in records for value in record.values())
    assert all(record["updates/skipped"] == 0 for record in records)
    assert metrics(plain.folder)[0]["entropy"] != records[0]["entropy"]
    assert metrics(plain.folder)[0]["entropy"] == pytest.approx(records[0]["entropy"], abs=0.05)
    assert low.policy.model.dtype == torch.float32


def test_an_update_that_is_not_finite_is_skipped_and_counted(tmp_path: Path) -> None:
    policy = tiny_policy()
    seen: list[dict[str, torch.Tensor]] = []

    def spoil(grad: torch.Tensor) -> torch.Tensor:
        seen.append(weights(policy.model))
        return torch.full_like(grad, math.nan) if len(seen) == 2 else grad

    policy.model.model.norm.weight.register_hook(spoil)
    result = run_rl(tmp_path / "run", model=pair(policy), training={"steps": 4})
    records = metrics(result.folder)
    assert [record["updates/skipped"] for record in records] == [0, 1, 1, 1]
    assert ["grad_norm" in record for record in records] == [True, False, True, True]
    assert all(torch.equal(value, seen[2][name]) for name, value in seen[1].items())
    assert any(not torch.equal(value, seen[3][name]) for name, value in seen[2].items())


def test_too_many_updates_that_are_not_finite_stop_the_run_and_name_the_last_checkpoint(tmp_path: Path) -> None:
    policy = tiny_policy()
    count: list[int] = []

    def spoil(grad: torch.Tensor) -> torch.Tensor:
        count.append(1)
        return grad * math.inf if len(count) > 2 else grad

    policy.model.model.norm.weight.register_hook(spoil)
    with pytest.raises(reinlm.RunError, match="2 updates in a row were not finite") as caught:
        run_rl(
            tmp_path / "run",
            model=pair(policy),
            training={"steps": 9},
            optimizer={"max_skipped": 2},
            run={"save_every": 2},
        )
    assert str(tmp_path / "run" / "checkpoints" / "step_2") in str(caught.value.hint)


# ------------------------------------------------------------------------------------------------ the same run again


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"training": {"steps": 4, "minibatches": 2}, "run": {"rollouts_every": 1}}
    changes["evaluation"] = {"data": HELD_OUT, "max_new_tokens": 4}
    first, second = (run_rl(tmp_path / name, seed=5, **changes) for name in ("first", "second"))
    other = run_rl(tmp_path / "other", seed=6, **changes)
    assert metrics(first.folder) == metrics(second.folder)
    assert all(
        torch.equal(a, b)
        for a, b in zip(first.policy.model.parameters(), second.policy.model.parameters(), strict=True)
    )
    files = [sorted((run.folder / "rollouts").iterdir()) for run in (first, second)]
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]
    assert metrics(other.folder) != metrics(first.folder)


def test_training_moves_a_copy_of_nothing_but_the_given_model(tmp_path: Path) -> None:
    policy = tiny_policy()
    before = copy.deepcopy(weights(policy.model))
    result = run_rl(tmp_path / "run", model=pair(policy))
    assert result.policy.model is policy.model
    assert any(not torch.equal(value, before[name]) for name, value in weights(policy.model).items())


def test_a_reward_that_can_be_learned_is_learned(tmp_path: Path) -> None:
    result = run_rl(tmp_path / "run", training={"steps": 40}, rollout={"batch_size": 32})
    rewards = [record["reward"] for record in metrics(result.folder)]
    assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.3
