"""Critics in a run: their own backbone or the policy's, warm-up, and values of answers that were cut off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from training_helpers import (
    even,
    moved,
    prepared,
    rl_task,
    saved_model,
    steps,
    tiny_policy,
    weights,
)

from reinlm.algorithms import algorithm
from reinlm.batches import TokenBatch
from reinlm.loop.run import ALONE
from reinlm.models import (
    VALUES,
    LoraConfig,
    ModelConfig,
    load_policy,
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
