"""Networks: the vectors of ALGORITHMS §15, what truncation does, TRPO's promises, and that learning goes on exactly."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from classical_helpers import Counter

from reinlm import classical
from reinlm.classical import A2C, DQN, PPO, REINFORCE, TRPO, ActorCritic, PPOPenalty
from reinlm.classical.deep.networks import Categorical, Flat, Gaussian
from reinlm.classical.deep.normalise import Moments, Observations, Rewards
from reinlm.classical.deep.replay import Replay, Transitions
from reinlm.errors import InputError, RunError
from reinlm.runs import MetricSums

SMALL: dict[str, Any] = {"hidden": (8,)}


def set_output(network: torch.nn.Module, bias: list[float]) -> None:
    """Make a network say `bias`, whatever it sees."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        last = [p for p in network.parameters() if p.shape == (len(bias),)][-1]
        last.copy_(torch.tensor(bias))


# ------------------------------------------------------------------------------------------------ DQN


@pytest.mark.parametrize(("double", "target"), [(False, 3.2), (True, 1.4)])
@pytest.mark.parametrize(("terminated", "huber"), [(False, True), (True, True), (False, False)])
def test_vector_15_the_target_of_dqn(double: bool, target: float, terminated: bool, huber: bool) -> None:
    """R = 0.5, γ = 0.9, target network [1, 3], online network [2.5, 2]; Huber(0.5) = 0.125, Huber(2) = 1.5."""
    agent = DQN(Counter(), discount=0.9, double=double, huber=huber, n=1, **SMALL)
    set_output(agent.online, [2.5, 2.0])
    set_output(agent.target, [1.0, 3.0])
    batch = Transitions(
        torch.zeros(1, 2),
        torch.tensor([1]),
        torch.tensor([0.5]),
        torch.zeros(1, 2),
        torch.tensor([terminated]),
        torch.ones(1),
    )
    error = (0.5 if terminated else target) - 2.0
    loss, value = agent.loss(batch)
    expected = (error**2 / 2 if abs(error) < 1 else abs(error) - 0.5) if huber else error**2
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-6)
    assert float(value) == 2.0
    loss.backward()
    slope = agent.target.weights[-1][1].grad
    assert slope is not None
    assert float(slope.abs().sum()) == 0.0  # the target is a constant


def test_the_memory_holds_the_final_observation_of_a_truncated_episode_and_says_that_it_may_bootstrap() -> None:
    for truncates in (True, False):
        agent = DQN(Counter(3, truncates=truncates), learning_starts=1000, n=1, **SMALL).learn(7)
        memory = agent.memory
        assert memory.observations[:7, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
        assert memory.successors[:7, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]
        assert memory.successors[:6, 1].tolist() == [0, 0, 0, 1, 1, 1]  # of the same episode, never of the next
        assert memory.rewards[:6].tolist() == [1, 2, 3, 1, 2, 3]
        assert memory.terminated[:6].tolist() == [False, False, not truncates] * 2


def test_n_step_transitions_sum_discounted_rewards_and_end_with_the_episode() -> None:
    agent = DQN(Counter(4, truncates=True), n=3, discount=0.5, learning_starts=1000, **SMALL).learn(8)
    memory = agent.memory
    assert memory.rewards[:4].tolist() == [1 + 0.5 * 2 + 0.25 * 3, 2 + 0.5 * 3 + 0.25 * 4, 3 + 0.5 * 4, 4.0]
    assert memory.observations[:4, 0].tolist() == [0, 1, 2, 3]
    assert memory.successors[:4, 0].tolist() == [3, 4, 4, 4]
    assert memory.discounts[:4].tolist() == [0.125, 0.125, 0.25, 0.5]
    assert not memory.terminated[:4].any()


def test_a_full_memory_forgets_the_oldest_and_refuses_more_bytes_than_it_may_take() -> None:
    memory = Replay(3, 1, 2**20)
    for value in range(5):
        memory.add(np.array([value]), value, float(value), np.array([value]), False, 0.9)
    assert len(memory) == 3
    assert sorted(memory.actions.tolist()) == [2, 3, 4]
    assert set(memory.sample(200, np.random.default_rng(0)).actions.tolist()) == {2, 3, 4}
    with pytest.raises(InputError, match=r"takes .* GiB, more than max_bytes"):
        DQN("CartPole-v1", capacity=10**9)


def test_the_target_network_is_copied_or_follows() -> None:
    for mix in (1.0, 0.25):
        agent = DQN(Counter(), learning_starts=0, train_every=4, updates=2, target_every=4, mix=mix, seed=1, **SMALL)
        start = agent.frozen.vector.detach().clone()
        torch.testing.assert_close(start, agent.flat.vector.detach())
        agent.learn(4)
        moved = agent.flat.vector.detach().clone()
        assert not torch.equal(moved, start)
        torch.testing.assert_close(agent.frozen.vector.detach(), start)  # it moved before the updates
        agent.settings = agent.settings.model_copy(update={"learning_starts": 10**6})
        agent.learn(4)
        torch.testing.assert_close(agent.frozen.vector.detach(), start + mix * (moved - start))


def test_epsilon_goes_down_over_its_share_of_the_budget() -> None:
    settings: Any = {"epsilon_start": 1.0, "epsilon_end": 0.1, "epsilon_share": 0.5, "updates": 1, "train_every": 64}
    agent = DQN(Counter(), learning_starts=100, **settings, **SMALL)
    agent.begin(1000)
    agent.advance(64)
    assert agent.epsilon == 1.0  # until learning starts every action is random
    agent.advance(256)
    assert agent.epsilon == pytest.approx(1.0 - 0.9 * 0.256 / 0.5)
    agent.advance(1000)
    assert agent.epsilon == pytest.approx(0.1)


# ------------------------------------------------------------------------------------------------ policy gradients


def test_vector_15_reinforce_moves_the_logits_by_the_return_above_the_baseline() -> None:
    """π = [.5, .5], a = 0, G = 2, b = .5, α = .1: Δθ = [.075, -.075]."""
    agent = REINFORCE(Counter(1, truncates=False), hidden=(), optimizer="sgd", learning_rate=0.1, baseline_rate=1e-9)
    set_output(agent.actor, [0.0, 0.0])
    set_output(agent.critic, [0.5])
    batch = agent.prepare(agent.episode())
    assert batch.returns.tolist() == [1.0]
    chosen = type(batch)(**{**vars(batch), "actions": torch.tensor([0]), "advantages": torch.tensor([2.0 - 0.5])})
    loss, entropy = agent.loss(chosen)
    agent.update(agent.flat, agent.optimizer, loss, 0.1)
    torch.testing.assert_close(agent.actor.body.weights[-1][1].detach(), torch.tensor([0.075, -0.075]))
    assert float(entropy) == pytest.approx(math.log(2))


def test_reinforces_return_is_the_reward_to_go_and_a_cut_off_episode_goes_on_with_the_baseline() -> None:
    for truncates, after in ((False, 0.0), (True, 5.0)):
        agent = REINFORCE(Counter(3, truncates=truncates), discount=0.9, **SMALL)
        set_output(agent.critic, [5.0])
        last = 3 + 0.9 * after
        expected = [1 + 0.9 * (2 + 0.9 * last), 2 + 0.9 * last, last]
        torch.testing.assert_close(agent.prepare(agent.episode()).returns, torch.tensor(expected))
    without = REINFORCE(Counter(3, truncates=True), discount=0.9, baseline=False, **SMALL)
    torch.testing.assert_close(
        without.prepare(without.episode()).advantages, torch.tensor([1 + 0.9 * (2 + 0.9 * 3), 2 + 0.9 * 3, 3.0])
    )


def test_vector_15_a2c_advantages_and_the_final_observation_of_a_vectorised_environment() -> None:
    """Values read the clock of the true successor; the first observation of the next episode would give other ones."""
    agent = A2C(Counter(3, truncates=True), rollout_steps=5, discount=0.9, hidden=(), normalize_rewards=False)
    with torch.no_grad():
        weight, bias = agent.critic.body.weights[0]
        weight.copy_(torch.tensor([[1.0, 0.0]]))
        bias.zero_()
    rollout = agent.collect()
    assert rollout.observations[:, 0, 0].tolist() == [0, 1, 2, 0, 1]
    assert rollout.values[:, 0].tolist() == [0, 1, 2, 0, 1]
    assert rollout.next_values[:, 0].tolist() == [1, 2, 3, 1, 2]
    assert rollout.truncated[:, 0].tolist() == [False, False, True, False, False]
    batch = agent.prepare(rollout)
    last = 3 + 0.9 * 3
    expected = [1 + 0.9 * (2 + 0.9 * last), 2 + 0.9 * last, last, 1 + 0.9 * (2 + 0.9 * 2), 2 + 0.9 * 2]
    torch.testing.assert_close(batch.returns, torch.tensor(expected))


def test_a2cs_loss_is_the_textbooks() -> None:
    agent = A2C("CartPole-v1", seed=0, environments=2, rollout_steps=4, entropy_coefficient=0.01)
    batch = agent.prepare(agent.collect())
    loss, _ = agent.loss(batch)
    distribution = agent.actor(batch.observations)
    values = agent.critic(batch.observations)
    expected = -(batch.advantages * distribution.logprob(batch.actions)).mean()
    expected = expected + 0.5 * (values - batch.returns).square().mean() / 2 - 0.01 * distribution.entropy().mean()
    theirs = torch.autograd.grad(expected, agent.flat.parameters)
    ours = torch.autograd.grad(loss, agent.flat.parameters)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    assert isinstance(agent.optimizer, torch.optim.RMSprop)


@pytest.mark.parametrize("length", [1, 4])
def test_actor_critic_updates_after_every_batch_of_steps(length: int) -> None:
    agent = ActorCritic(Counter(5), rollout_steps=length, **SMALL)
    sums = MetricSums()
    agent.begin(10)
    agent.improve(sums)
    assert agent.steps == length
    assert {"policy_loss", "value_loss", "entropy", "grad_norm"} <= sums.means().keys()


def test_ppo_stops_a_batch_that_moved_too_far() -> None:
    calm = PPO("CartPole-v1", seed=0, learning_rate=0.05, target_kl=1e-4, schedule="constant")
    calls = []
    real = calm.update
    calm.update = lambda *given: calls.append(1) or real(*given)  # type: ignore[method-assign,func-returns-value]
    calm.learn(512)
    assert 1 <= len(calls) < 20


def test_ppo_penaltys_coefficient_follows_schulmans_rule() -> None:
    for rate, factor in ((1e-9, 0.5), (0.03, 2.0)):
        agent = PPOPenalty("CartPole-v1", seed=0, learning_rate=rate, schedule="constant", coefficient=1e-3)
        metrics: list[dict[str, float]] = []
        agent.learn(512, log=metrics.append)
        assert agent.coefficient == pytest.approx(1e-3 * factor)
        assert metrics[-1]["kl/old_coefficient"] == pytest.approx(1e-3)
        assert (metrics[-1]["kl/old"] > 0.015) == (factor == 2.0)


def test_continuous_actions_are_clipped_for_the_environment_alone() -> None:
    world = Counter(50, box=True)
    agent = PPO(world, seed=0, environments=1, rollout_steps=64, **SMALL)
    rollout = agent.collect()
    assert float(rollout.actions.abs().max()) > 1.0
    assert max(abs(float(action[0])) for action in world.taken) <= 1.0
    assert rollout.actions.shape == (64, 1, 1)
    single = agent.predict(np.zeros(2, dtype=np.float32))
    assert single.shape == (1,)
    assert agent.predict(np.zeros((3, 2), dtype=np.float32)).shape == (3, 1)


# ------------------------------------------------------------------------------------------------ TRPO


def test_every_step_of_trpo_is_within_the_trust_region_and_an_improvement() -> None:
    agent = TRPO("CartPole-v1", seed=0)
    agent.begin(20_000)
    for _ in range(12):
        batch = agent.prepare(agent.collect())
        with torch.no_grad():
            old = agent.actor(batch.observations).detach()
            before = float(agent.surrogate(batch))
        measured = agent.policy_step(batch)
        with torch.no_grad():
            divergence = float(agent.actor(batch.observations).kl_from(old).mean())
            after = float(agent.surrogate(batch))
        assert measured["trust_region__accepted"] == 1.0
        assert 0.0 < divergence <= 0.01
        assert after < before
        assert measured["kl__old"] == pytest.approx(divergence)
        assert measured["surrogate_improvement"] == pytest.approx(before - after)


def test_a_failed_line_search_leaves_the_weights_bit_identical() -> None:
    agent = TRPO("CartPole-v1", seed=0, backtracks=1)
    batch = agent.prepare(agent.collect())
    weights = agent.policy.vector.detach().clone()
    real = agent.surrogate
    agent.surrogate = lambda batch: real(batch) * 0.0 + 1.0 if not torch.is_grad_enabled() else real(batch)  # type: ignore[method-assign]
    measured = agent.policy_step(batch)
    assert measured == {"trust_region__accepted": 0.0, "kl__old": 0.0, "surrogate_improvement": 0.0}
    assert torch.equal(agent.policy.vector, weights)


def test_without_an_advantage_trpo_takes_no_step() -> None:
    agent = TRPO("CartPole-v1", seed=0)
    batch = agent.prepare(agent.collect())
    nothing = type(batch)(**{**vars(batch), "advantages": torch.zeros_like(batch.advantages)})
    weights = agent.policy.vector.detach().clone()
    assert agent.policy_step(nothing)["trust_region__accepted"] == 0.0
    assert torch.equal(agent.policy.vector, weights)


# ------------------------------------------------------------------------------------------------ parts


def test_distributions_agree_with_torchs_own() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, other = torch.randn(2, 7, 3, generator=generator, dtype=torch.float64).unbind(0)
    ours, old = Categorical(torch.log_softmax(logits, -1)), Categorical(torch.log_softmax(other, -1))
    theirs, before = torch.distributions.Categorical(logits=logits), torch.distributions.Categorical(logits=other)
    actions = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    torch.testing.assert_close(ours.logprob(actions), theirs.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(ours.kl_from(old), torch.distributions.kl_divergence(before, theirs))
    mean, log_std = torch.tensor([[0.3, -1.0]]), torch.tensor([0.5, -0.5])
    normal = Gaussian(mean, log_std)
    by_hand = -0.5 * (((0.1 - mean) / log_std.exp()) ** 2 + 2 * log_std + math.log(2 * math.pi)).sum()
    assert float(normal.logprob(torch.tensor([[0.1, 0.1]]))) == pytest.approx(float(by_hand), rel=1e-6)
    moved = Gaussian(mean + 1.0, log_std)
    assert float(moved.kl_from(normal)) == pytest.approx(float((0.5 / (2 * log_std).exp()).sum()), rel=1e-6)
    assert float(normal.entropy()) == pytest.approx(
        float((log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()), rel=1e-6
    )


def test_sampled_actions_have_the_policys_probabilities_and_numpy_plays_as_torch_does() -> None:
    agent = PPO("CartPole-v1", seed=0)
    set_output(agent.actor, [0.0, math.log(3.0)])
    noise = agent.actor.noise((4000,), torch.Generator().manual_seed(0))
    observations = torch.zeros(4000, 4)
    drawn = agent.actor(observations).sample(noise)
    assert float(drawn.float().mean()) == pytest.approx(0.75, abs=0.025)
    np.testing.assert_array_equal(agent.actor.player()(observations.numpy(), noise.numpy()), drawn.numpy())
    for kind, env in ((DQN, "CartPole-v1"), (PPO, "Pendulum-v1")):
        network: Any = kind(env, seed=1)
        body = network.online if kind is DQN else network.actor.body
        x = torch.randn(5, network.inputs, generator=torch.Generator().manual_seed(2))
        np.testing.assert_allclose(body.player()(x.numpy()), body(x).detach().numpy(), atol=1e-5)


def test_all_parameters_move_as_one_vector_and_the_gradient_is_clipped_as_a_whole() -> None:
    layer = torch.nn.Linear(2, 1)
    flat = Flat([layer])
    optimizer = torch.optim.SGD([flat.vector], lr=1.0)
    before = flat.vector.detach().clone()
    norm = flat.step(layer(torch.tensor([[3.0, 4.0]])).sum() * 2, optimizer, 1.0)
    assert float(norm) == pytest.approx(2 * math.sqrt(26))
    torch.testing.assert_close(before - flat.vector.detach(), torch.tensor([3.0, 4.0, 1.0]) / math.sqrt(26))
    torch.testing.assert_close(layer.weight.detach().ravel(), flat.vector.detach()[:2])


def test_running_moments_are_those_of_all_that_was_seen() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(3.0, 2.0, (n, 2)) for n in (1, 5, 0, 40)]
    moments = Moments((2,))
    for part in parts:
        moments.update(part)
    everything = np.concatenate(parts)
    np.testing.assert_allclose(moments.mean, everything.mean(0))
    np.testing.assert_allclose(moments.variance, everything.var(0))
    scale = Observations((2,))
    scale.update(everything)
    assert np.abs(scale(everything * 1e6)).max() == 10.0
    rewards = Rewards(1, 0.9)
    rewards(np.array([1.0]), np.array([False]))
    rewards(np.array([1.0]), np.array([True]))
    np.testing.assert_allclose(rewards.variance, np.var([1.0, 1.9]))
    assert rewards.running.tolist() == [0.0]


# ------------------------------------------------------------------------------------------------ saving


@pytest.mark.parametrize(
    ("kind", "env", "settings", "first", "second"),
    [
        (PPO, "CartPole-v1", {"rollout_steps": 16}, 256, 256),
        (PPO, "Pendulum-v1", {"rollout_steps": 16}, 256, 256),
        (PPOPenalty, "CartPole-v1", {"rollout_steps": 16}, 256, 256),
        (A2C, "CartPole-v1", {}, 256, 256),
        (TRPO, "CartPole-v1", {"rollout_steps": 64}, 512, 256),
        (REINFORCE, "CartPole-v1", {}, 200, 200),
        (DQN, "CartPole-v1", {"learning_starts": 100, "train_every": 64, "updates": 4, "n": 3}, 300, 300),
        (classical.SARSA, "CliffWalking-v1", {}, 300, 300),
        (classical.DoubleQLearning, "Taxi-v4", {}, 300, 300),
        (classical.MonteCarlo, "Blackjack-v1", {}, 300, 300),
        (classical.OffPolicyMonteCarlo, "Blackjack-v1", {}, 300, 300),
        (classical.TD, "FrozenLake-v1", {"smoothing": 0.9}, 300, 300),
    ],
)
def test_a_saved_agent_goes_on_bit_for_bit(
    kind: Any, env: str, settings: dict[str, Any], first: int, second: int, tmp_path: Path
) -> None:
    straight = kind(env, seed=5, **settings).learn(first)
    straight.save(tmp_path / "agent")
    loaded = kind.load(tmp_path / "agent")
    straight.learn(second)
    loaded.learn(second)
    assert loaded.steps == straight.steps
    assert loaded.episodes.returns == straight.episodes.returns
    ours, theirs = loaded.state_dict(), straight.state_dict()
    for name in ("q", "v", "pair", "weights", "counts"):
        if name in ours:
            np.testing.assert_array_equal(np.asarray(ours[name]), np.asarray(theirs[name]))
    for name, network in ours.get("networks", {}).items():
        for key, value in network.items():
            assert torch.equal(value, theirs["networks"][name][key]), (name, key)


def test_loading_says_what_is_wrong(tmp_path: Path) -> None:
    agent = classical.SARSA("CliffWalking-v1").learn(episodes=2)
    agent.save(tmp_path / "agent")
    assert isinstance(classical.load(tmp_path / "agent"), classical.SARSA)
    with pytest.raises(InputError, match="holds an agent of 'sarsa', not of 'ppo'"):
        PPO.load(tmp_path / "agent")
    with pytest.raises(InputError, match="holds no agent"):
        classical.load(tmp_path)
    own = DQN(Counter(), **SMALL).learn(20)
    own.save(tmp_path / "own")
    with pytest.raises(InputError, match="was made with an environment"):
        DQN.load(tmp_path / "own").learn(20)
    assert DQN.load(tmp_path / "own", Counter()).steps == 20
    assert classical.evaluate(own, episodes=2).lengths == (3, 3)  # in a copy
    PPO("CartPole-v1", hidden=()).save(tmp_path / "pole")
    with pytest.raises(InputError, match="does not fit Pendulum-v1: its observations or actions are others"):
        PPO.load(tmp_path / "pole", env="Pendulum-v1")
    assert classical.evaluate(own, Counter(), 2).lengths == (3, 3)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        agent.save(tmp_path / "file")


def test_weights_that_are_not_finite_end_the_run_by_name() -> None:
    agent = PPO("CartPole-v1", seed=0)
    with torch.no_grad():
        agent.flat.vector[0] = math.nan
    with pytest.raises((RunError, ValueError), match=r"not finite|nan|NaN"):
        agent.learn(2048)
