"""Critics in a run: their own backbone or the policy's, warm-up, and values of answers that were cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_helpers import (
    ROWS,
    even,
    metrics,
    moved,
    pair,
    prepared,
    rl_task,
    run_rl,
    saved_model,
    steps,
    tiny_policy,
    weights,
)

import reinlm
from reinlm.algorithms import algorithm
from reinlm.batches import TokenBatch
from reinlm.errors import InputError
from reinlm.loop.run import ALONE
from reinlm.models import (
    VALUES,
    LoraConfig,
    ModelConfig,
    RewardHeads,
    character_tokenizer,
    load_policy,
    load_reward_model,
    new_reward_model,
    save_policy,
)
from reinlm.objectives import GAE

pytestmark = pytest.mark.no_cover

# ------------------------------------------------------------------------------------------------ critics


@pytest.mark.parametrize("backbone", ["own", "shared"])
def test_while_the_critic_warms_up_the_policy_does_not_move(backbone: str) -> None:
    policy = tiny_policy()
    before = weights(policy.model)
    task = rl_task(
        policy,
        algorithm("ppo", critic={"clip": None}),
        reward=even,
        training={"minibatches": 2, "passes": 2, "steps": 4},
        critic={"backbone": backbone, "warmup_steps": 3},
    )
    assert task.updater.critic is not None
    critic = task.updater.critic.model
    first = {name: value.clone() for name, value in critic.learned().items()}
    logged = steps(task, 3)
    assert not moved(policy, before)
    assert any(not torch.equal(value, first[name]) for name, value in critic.learned().items())
    assert [record["critic/warmup"] for record in logged] == [1.0] * 3
    assert all("loss" not in record and record["updates/made"] == 0 for record in logged)
    assert (task.state.updates, task.state.batches) == (0, 3)
    last = task.step(4, ALONE).metrics
    assert moved(policy, before)
    assert "critic/warmup" not in last
    assert (last["updates/made"], task.state.updates) == (4, 4)


def warmed(bootstrap: bool) -> list[dict[str, float]]:
    """Twenty-five steps of warm-up on answers of a random model, most of which a limit cuts off."""
    gae = {"critic_lambda": 1.0, "bootstrap_truncated": bootstrap}
    task = rl_task(
        tiny_policy(),
        algorithm("ppo", advantage={"whitened": {"gae": gae}}, critic={"clip": None, "coefficient": 1.0}, kl=None),
        reward=even,
        rollout={"batch_size": 64},
        training={"minibatches": 4, "passes": 4, "steps": 25},
        critic={"warmup_steps": 25},
    )
    return steps(task, 25)


def test_a_critic_learns_to_explain_what_answers_earn() -> None:
    logged = warmed(bootstrap=False)
    assert logged[0]["explained_variance"] == pytest.approx(0.0, abs=1e-9)
    assert np.mean([record["explained_variance"] for record in logged[-10:]]) > 0.15
    assert logged[-1]["value_loss"] < 0.8 * logged[0]["value_loss"]
    assert logged[-1]["values/mean"] == pytest.approx(logged[-1]["returns/mean"], abs=0.1)


def test_values_that_bootstrap_where_every_answer_is_cut_off_learn_from_themselves_and_drift() -> None:
    logged = warmed(bootstrap=True)
    assert logged[0]["completions/clipped_ratio"] > 0.5
    assert logged[-1]["value_loss"] > 4.0 * logged[0]["value_loss"]
    assert abs(logged[-1]["returns/mean"] - logged[-1]["reward"]) > 0.3


@pytest.mark.parametrize("backbone", ["own", "shared"])
def test_advantages_and_returns_are_those_of_the_critics_values(backbone: str) -> None:
    task = rl_task(
        tiny_policy(),
        algorithm("ppo", advantage=GAE(gamma=0.9, gae_lambda=0.8), kl=None),
        reward=even,
        critic={"backbone": backbone},
    )
    critic = task.updater.critic
    assert critic is not None
    with torch.no_grad():
        critic.model.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    kept, _, made, found = prepared(task)
    assert made.feedback.truncated is not None
    assert bool(made.feedback.truncated.any())
    assert not bool(made.feedback.truncated.all())
    start = 0
    for group in kept:
        for rollout, reward in zip(group.group.rollouts, group.returns, strict=True):
            (segment,) = rollout.segments
            places = [*segment.positions.tolist(), len(segment)]
            one = TokenBatch.of([segment.token_ids.tolist()], [places])
            valued = critic.learner.forward(one, VALUES).values
            assert valued is not None
            assert reward is not None
            values = valued.double().tolist()
            running, expected = 0.0, []
            for t in reversed(range(rollout.length)):
                last = t == rollout.length - 1
                following = values[t + 1] if not last or rollout.truncated else 0.0
                running = (reward if last else 0.0) + 0.9 * following - values[t] + 0.9 * 0.8 * running
                expected.append(running)
            stop = start + rollout.length
            assert made.advantages[start:stop].tolist() == pytest.approx(expected[::-1], abs=1e-5)
            assert made.returns is not None
            returns = [a + v for a, v in zip(expected[::-1], values, strict=False)]
            assert made.returns[start:stop].tolist() == pytest.approx(returns, abs=1e-5)
            start = stop
    assert found["explained_variance"] < 0.5


def test_policy_and_shared_critic_take_one_forward_pass_an_update() -> None:
    policy = tiny_policy()
    task = rl_task(policy, algorithm("ppo", kl=None), reward=even, critic={"backbone": "shared"})
    _, batch, made, _ = prepared(task)
    calls: list[int] = []
    policy.model.model.register_forward_hook(lambda *_: calls.append(1))
    task.updater.update(1, batch, made)
    assert len(calls) == 1


def test_a_critic_under_an_adapter_leaves_base_and_policy_alone_and_is_saved_apart(tmp_path: Path) -> None:
    path = saved_model(tmp_path / "model")
    policy = load_policy(ModelConfig(path=str(path), lora=LoraConfig(rank=4)))
    task = rl_task(policy, algorithm("ppo"), reward=even, training={"steps": 3}, critic={"warmup_steps": 2})
    before = {name: value.detach().clone() for name, value in policy.model.named_parameters()}
    steps(task, 2)
    changed = {n for n, v in policy.model.named_parameters() if not torch.equal(v, before[n])}
    assert changed
    assert all(".critic." in name for name in changed)
    task.step(3, ALONE)
    changed = {n for n, v in policy.model.named_parameters() if not torch.equal(v, before[n])}
    assert any(".default." in name for name in changed)
    assert all("lora" in name for name in changed)
    save_policy(policy, tmp_path / "saved")
    assert not list((tmp_path / "saved").rglob("*critic*"))
    again = load_policy(str(tmp_path / "saved"))
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        torch.testing.assert_close(again.model(ids).logits, policy.model(ids).logits, atol=1e-5, rtol=1e-4)


def test_a_critic_may_start_from_another_model(tmp_path: Path) -> None:
    other = saved_model(tmp_path / "other", seed=7)
    task = rl_task(tiny_policy(), algorithm("ppo"), reward=even, critic={"path": str(other)})
    theirs = dict(load_policy(str(other)).model.model.named_parameters())
    assert task.updater.critic is not None
    own = dict(task.updater.critic.model.model.lm.named_parameters())
    assert own.keys() == theirs.keys()
    assert all(torch.equal(weight, theirs[name]) for name, weight in own.items())


def reward_model(folder: Path, **heads: Any) -> str:
    """A normalised reward model on a backbone of its own, with heads as they were drawn."""
    model = new_reward_model(ModelConfig(path=str(saved_model(folder / "base", seed=5))), RewardHeads(**heads), seed=2)
    batch = model.batch([[n % 9 + 2, 12, n % 7 + 2, 1] for n in range(40)], [2] * 40)
    model.normalised(model.score(batch).reward).save(folder / "rm")
    return str(folder / "rm")


@pytest.mark.parametrize("heads", [{}, {"members": 3}, {"criteria": ("a", "b"), "weights": (1.0, -0.5), "members": 2}])
def test_the_first_values_of_a_critic_from_a_reward_model_are_its_scores_of_the_text_so_far(
    tmp_path: Path, heads: Any
) -> None:
    path = reward_model(tmp_path, **heads)
    task = rl_task(tiny_policy(), algorithm("ppo"), reward=even, critic={"path": path})
    assert task.updater.critic is not None
    sequences = [[3, 4, 5, 6, 7], [8, 9, 2, 4]]
    places = [[2, 4, 5], [1, 3]]
    found = task.updater.critic.learner.forward(TokenBatch.of(sequences, places), VALUES).values
    assert found is not None
    prefixes = [ids[:place] for ids, at in zip(sequences, places, strict=True) for place in at]
    model = load_reward_model(path)
    expected = model.score(model.batch(prefixes, [0] * len(prefixes))).reward
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert expected.std() > 0.1


def test_a_critic_starts_from_a_classifier_that_transformers_saved(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    policy = tiny_policy()
    made = AutoModelForSequenceClassification.from_pretrained(saved_model(tmp_path / "base", seed=5), num_labels=1)
    made.config.pad_token_id = policy.tokenizer.convert_tokens_to_ids("=")
    made.save_pretrained(tmp_path / "rm")
    policy.tokenizer.save_pretrained(tmp_path / "rm")
    task = rl_task(policy, algorithm("ppo"), reward=even, critic={"path": str(tmp_path / "rm")})
    assert task.updater.critic is not None
    found = task.updater.critic.learner.forward(TokenBatch.of([[3, 4, 5, 6]], [[1, 4]]), VALUES).values
    with torch.no_grad():
        expected = [float(made.eval()(input_ids=torch.tensor([ids])).logits) for ids in ([3], [3, 4, 5, 6])]
    assert found is not None
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_ppo_trains_a_critic_from_a_reward_model_and_resumes_with_the_same_bits(tmp_path: Path) -> None:
    path = reward_model(tmp_path)
    settings: dict[str, Any] = {"algorithm": "ppo", "critic": {"path": path}, "reward": even}
    whole = run_rl(tmp_path / "whole", training={"steps": 3}, **settings)
    run_rl(tmp_path / "parts", training={"steps": 2}, **settings)
    parts = reinlm.rl(
        pair(tiny_policy()), ROWS, output=tmp_path / "parts", resume=True, quiet=True, reward=even, steps=3
    )
    assert metrics(whole.folder) == metrics(parts.folder)
    assert all(record["values/mean"] != 0.0 for record in metrics(whole.folder))
    assert all(
        torch.equal(a, b) for a, b in zip(*(weights(run.policy.model).values() for run in (whole, parts)), strict=True)
    )


def test_a_critic_needs_one_score_of_an_answer_and_the_policys_tokens(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    steps_model = reward_model(tmp_path / "steps", reads="steps")
    with pytest.raises(InputError, match=r"critic\.path .*: a process reward model gives logits of steps"):
        rl_task(tiny_policy(), algorithm("ppo"), reward=even, critic={"path": steps_model})
    several = AutoModelForSequenceClassification.from_pretrained(saved_model(tmp_path / "base"), num_labels=3)
    several.save_pretrained(tmp_path / "several")
    tiny_policy().tokenizer.save_pretrained(tmp_path / "several")
    with pytest.raises(InputError, match=r"critic\.path .* gives 3 numbers for an answer"):
        rl_task(tiny_policy(), algorithm("ppo"), reward=even, critic={"path": str(tmp_path / "several")})
    path = reward_model(tmp_path)
    character_tokenizer("9876543210+=").save_pretrained(path)
    with pytest.raises(InputError, match=r"critic\.path .* reads other tokens than the policy"):
        rl_task(tiny_policy(), algorithm("ppo"), reward=even, critic={"path": path})
