"""The weights that did best are kept: what is evaluated when, what acts, and what training does not notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from classical_helpers import Counter

from reinlm.classical import DQN, PPO, evaluate
from reinlm.classical.run import ClassicalConfig, run_classical

SMALL: dict[str, Any] = {"hidden": (8,), "learning_starts": 10, "train_every": 10, "updates": 2}


class Wanted(gym.Env[Any, Any]):
    """Ends after one step; action 1 earns 1. What it observes is always 1."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.ones(1, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.ones(1, dtype=np.float32), float(action), True, False, {}


def prefer(agent: DQN, action: int) -> None:
    """Make an action the greedy one in every state."""
    with torch.no_grad():
        weight, bias = agent.online.weights[-1]
        weight.zero_()
        bias.copy_(torch.nn.functional.one_hot(torch.tensor(action), 2))


def test_predict_acts_with_the_weights_that_did_best_and_training_goes_on_from_the_last() -> None:
    agent = DQN(Wanted(), eval_freq=10, n_eval_episodes=2, learning_rate=1e-12, **SMALL)
    agent.begin(40)
    observation = np.ones(1, dtype=np.float32)
    for at, action, kept in ((10, 0, 0), (20, 1, 1), (30, 0, 1)):
        prefer(agent, action)
        metrics = agent.advance(at)
        assert metrics["eval/selection/return"] == action
        assert agent.predict(observation) == kept, at
    assert agent.kept is not None
    assert (agent.kept.step, agent.kept.mean_return) == (20, 1.0)
    assert int(agent.online(torch.ones(1, 1)).argmax()) == 0  # the weights in training are the last
    prefer(agent, 1)
    agent.advance(40)
    assert agent.kept.step == 40  # of equals the later ones
    assert agent.evaluation_steps == 4 * 2
    assert evaluate(agent, episodes=3).returns == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("kind", [DQN, PPO])
def test_training_is_the_same_with_evaluations_as_without(kind: Any) -> None:
    settings = SMALL if kind is DQN else {"hidden": (8,), "environments": 2, "rollout_steps": 10, "epochs": 2}
    agents = [
        kind("CartPole-v1", seed=3, eval_freq=every, n_eval_episodes=1, **settings).learn(200) for every in (None, 50)
    ]
    assert agents[0].episodes.returns == agents[1].episodes.returns
    assert torch.equal(agents[0].flat.vector, agents[1].flat.vector)
    assert (agents[0].evaluation_steps, agents[0].kept) == (0, None)
    assert agents[1].evaluation_steps > 0


def test_there_is_an_evaluation_at_the_end_and_none_without_eval_freq() -> None:
    agent = DQN(Counter(5), eval_freq=1000, n_eval_episodes=3, **SMALL).learn(50)
    assert agent.kept is not None
    assert (agent.kept.step, agent.evaluation_steps) == (50, 15)
    assert DQN.Settings().eval_freq == 5_000
    assert DQN(Counter(5), eval_freq=None, **SMALL).learn(50).kept is None
    assert PPO.Settings().eval_freq is None


def test_what_is_kept_is_saved_with_the_scales_that_belong_to_it(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"hidden": (8,), "rollout_steps": 16, "eval_freq": 32, "n_eval_episodes": 1}
    agent = PPO("Pendulum-v1", seed=1, **settings, environments=2).learn(64)
    assert agent.kept is not None
    scale = agent.kept.parts["observations"]
    agent.save(tmp_path / "agent")
    loaded = PPO.load(tmp_path / "agent")
    assert loaded.kept is not None
    assert (loaded.kept.step, loaded.kept.mean_return) == (agent.kept.step, agent.kept.mean_return)
    np.testing.assert_array_equal(loaded.kept.parts["observations"].mean, scale.mean)
    observation = np.array([0.3, -0.4, 1.0], dtype=np.float32)
    np.testing.assert_array_equal(loaded.predict(observation), agent.predict(observation))
    loaded.learn(64)
    agent.learn(64)
    assert torch.equal(loaded.flat.vector, agent.flat.vector)
    assert loaded.evaluation_steps == agent.evaluation_steps


def test_a_run_counts_what_its_evaluations_cost(tmp_path: Path) -> None:
    config = ClassicalConfig(
        algorithm="dqn",
        env="CartPole-v1",
        steps=200,
        evaluation_episodes=2,
        settings={**SMALL, "eval_freq": 100, "n_eval_episodes": 2},
        output=str(tmp_path / "run"),
    )
    (run,) = run_classical(config).summary["runs"]
    assert run["steps"] == 200
    assert run["kept_step"] in (100, 200)
    assert run["evaluation_steps"] >= 4 * 8  # no pole falls within eight steps
