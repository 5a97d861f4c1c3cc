"""What the algorithms must reach at the end of a fixed budget, with the settings that they have by default.

Those that take more than a few seconds are marked slow; `make slow` runs them.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from reinlm.classical import (
    A2C,
    DQN,
    PPO,
    REINFORCE,
    SARSA,
    TRPO,
    DoubleQLearning,
    ExpectedSARSA,
    MonteCarlo,
    OffPolicyMonteCarlo,
    PPOPenalty,
    QLearning,
    evaluate,
)
from reinlm.classical.tabular.model import model_of
from reinlm.classical.worlds import ShortCorridor

pytestmark = pytest.mark.no_cover

CLIFF: dict[str, Any] = {"discount": 1.0, "epsilon": 0.1}


def soft_optimum(epsilon: float) -> float:
    """What the best of all policies earns that takes any action with probability ε: the fixed point of its own backup."""
    model = model_of(gym.make("CliffWalking-v1"))
    assert model is not None
    values = torch.zeros(48, dtype=torch.float64)
    for _ in range(5000):
        q = model.action_values(values, 1.0)
        values = (1 - epsilon) * q.amax(-1) + epsilon * q.mean(-1)
    return float(values[36])


def test_the_best_epsilon_soft_policy_on_the_cliff_earns_20_7_less_than_nothing() -> None:
    assert soft_optimum(0.1) == pytest.approx(-20.7, abs=0.05)


@pytest.mark.parametrize("seeds", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_q_learning_finds_the_edge_of_the_cliff(seeds: int) -> None:
    for seed in range(seeds):
        agent = QLearning("CliffWalking-v1", seed=seed, step_size=0.5, **CLIFF).learn(episodes=500)
        assert evaluate(agent, episodes=1).returns == (-13.0,), seed


@pytest.mark.parametrize("seeds", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_expected_sarsa_learns_with_step_size_one(seeds: int) -> None:
    agents = [
        ExpectedSARSA("CliffWalking-v1", seed=seed, step_size=1.0, **CLIFF).learn(episodes=1000)
        for seed in range(seeds)
    ]
    assert np.mean([agent.episodes.recent() for agent in agents]) == pytest.approx(soft_optimum(0.1), abs=1.5)
    assert [evaluate(agent, episodes=1).lengths for agent in agents] == [(15,)] * seeds


@pytest.mark.slow
def test_sarsa_comes_close_to_the_best_soft_policy() -> None:
    online = [
        SARSA("CliffWalking-v1", seed=seed, step_size=0.1, **CLIFF).learn(episodes=3000).episodes.recent()
        for seed in range(10)
    ]
    assert np.mean(online) == pytest.approx(soft_optimum(0.1), abs=2.0)


@pytest.mark.slow
def test_double_q_learning_is_deceived_far_less_often() -> None:
    left = {}
    for kind in (QLearning, DoubleQLearning):
        agents = [kind("reinlm/MaximizationBias-v0", seed=seed, step_size=0.1, epsilon=0.1) for seed in range(1000)]
        left[kind] = sum(agent.learn(episodes=99).explore(0) == 1 for agent in agents)
    assert left[QLearning] >= 3 * left[DoubleQLearning]


@pytest.mark.slow
def test_monte_carlo_learns_blackjack() -> None:
    agent = MonteCarlo("Blackjack-v1", env_arguments={"sab": True}, exploring_starts=True).learn(episodes=500_000)
    model = model_of(agent.env)
    assert model is not None
    policy = torch.nn.functional.one_hot(torch.tensor(agent.policy()), 2).to(torch.float64)
    assert float(model.start @ model.evaluate(policy, 1.0)) == pytest.approx(-0.0431, abs=0.002)


class OneHand(gym.Env[Any, Any]):
    """The blackjack state of figure 5.3: the dealer shows a deuce, the player holds an ace and a deuce (13, usable ace)."""

    def __init__(self) -> None:
        self.game: Any = gym.make("Blackjack-v1", sab=True).unwrapped
        self.observation_space, self.action_space = self.game.observation_space, self.game.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.game.reset(seed=seed)
        self.game.player, self.game.dealer[0] = [1, 2], 2
        return self.game._get_obs(), {}

    def step(self, action: int) -> Any:
        return self.game.step(action)


def weigh_one_hand(estimator: str, seed: int, episodes: int) -> float:
    """The estimate of the state's value under "stick on 20 or 21", from random actions."""
    target = np.zeros((704, 2))
    target[np.arange(704), (np.arange(704) // 22 < 20).astype(int)] = 1.0
    agent = OffPolicyMonteCarlo(OneHand(), target=target, estimator=estimator, seed=seed).learn(episodes=episodes)
    return float(agent.state_values[agent.encode((13, 2, 1))])


@pytest.mark.slow
def test_both_importance_estimators_find_the_value_of_figure_5_3() -> None:
    assert weigh_one_hand("weighted", 0, 60_000) == pytest.approx(-0.2772, abs=0.02)
    assert weigh_one_hand("ordinary", 0, 60_000) == pytest.approx(-0.2772, abs=0.02)


def test_the_weighted_estimator_has_the_lower_variance() -> None:
    spread = {name: np.std([weigh_one_hand(name, seed, 5) for seed in range(60)]) for name in ("weighted", "ordinary")}
    assert spread["weighted"] < 0.7 * spread["ordinary"]


@pytest.mark.slow
def test_reinforce_with_a_baseline_learns_the_mixture_of_the_short_corridor() -> None:
    values = []
    for seed in range(30):
        agent = REINFORCE("reinlm/ShortCorridor-v0", seed=seed).learn(episodes=1000)
        right = float(agent.actor(torch.ones(1, 1)).log_distribution.exp()[0, 1])
        values.append(ShortCorridor.value(right))
    assert np.mean(values) == pytest.approx(-11.657, abs=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "steps"),
    [(DQN, 100_000), (A2C, 200_000), (TRPO, 100_000), (PPO, 100_000), (PPOPenalty, 150_000)],
)
def test_cartpole_is_mastered_within_the_budget(kind: Any, steps: int) -> None:
    found = []
    for seed in range(10):
        agent = kind("CartPole-v1", seed=seed).learn(steps)
        assert agent.steps <= steps
        found.append(evaluate(agent, episodes=100).mean_return)
    assert np.median(found) >= 475
    assert np.mean(found) >= 450


@pytest.mark.slow
def test_ppo_swings_the_pendulum_up() -> None:
    agents = [PPO("Pendulum-v1", seed=seed).learn(300_000) for seed in range(3)]
    assert np.mean([evaluate(agent, episodes=100).mean_return for agent in agents]) >= -300


# ------------------------------------------------------------------------------------------------ small, for every day


@pytest.mark.parametrize(("kind", "steps"), [(A2C, 40_000), (TRPO, 30_000), (PPO, 30_000), (PPOPenalty, 30_000)])
def test_every_policy_gradient_learns_to_balance(kind: Any, steps: int) -> None:
    """A random policy balances for 22 steps."""
    agent = kind("CartPole-v1", seed=0).learn(steps)
    assert agent.episodes.recent() > 80


def test_dqn_learns_to_balance() -> None:
    agent = DQN("CartPole-v1", seed=0, hidden=(64, 64), epsilon_share=0.3, train_freq=4).learn(8_000)
    assert agent.episodes.recent() > 45
