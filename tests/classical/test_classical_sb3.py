"""Calls in Stable-Baselines3's words: the same settings, environments that are made already, and what is stored of them."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from classical_helpers import Counter

import reinlm.classical
from reinlm.classical import A2C, DQN, PPO, SARSA, evaluate, load
from reinlm.classical.run import ClassicalConfig, run_classical
from reinlm.cli import main
from reinlm.objectives import value_loss

POLE = "CartPole-v1"
FILE = """
import gymnasium, numpy

class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=5):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action):
        self.at += 1
        return numpy.full(1, self.at, numpy.float32), float(action), self.at >= self.length, False, {}
"""


def test_ppos_arguments_are_settings_here() -> None:
    theirs = PPO(
        "MlpPolicy",
        POLE,
        learning_rate=3e-4,
        n_steps=2048,
        batch_size=64,
        n_epochs=3,
        gamma=0.98,
        gae_lambda=0.9,
        clip_range=0.1,
        clip_range_vf=None,
        normalize_advantage=False,
        ent_coef=0.01,
        vf_coef=0.5,
        max_grad_norm=1.0,
        target_kl=0.02,
        policy_kwargs={"net_arch": {"pi": [8, 9], "vf": [8, 9]}, "activation_fn": torch.nn.Tanh},
        use_sde=False,
        tensorboard_log=None,
        verbose=0,
        seed=4,
        device="cpu",
    )
    ours = PPO(
        POLE,
        learning_rate=3e-4,
        environments=1,
        rollout_steps=2048,
        minibatch_size=64,
        epochs=3,
        discount=0.98,
        smoothing=0.9,
        clip=0.1,
        normalize_advantages=False,
        entropy_coefficient=0.01,
        value_coefficient=1.0,
        max_grad_norm=1.0,
        target_kl=0.02,
        hidden=(8, 9),
        seed=4,
    )
    assert theirs.settings == ours.settings
    assert theirs.seed == 4


def test_dqns_and_a2cs_arguments_are_settings_here() -> None:
    theirs = DQN(
        policy="MlpPolicy",
        env=POLE,
        buffer_size=500,
        learning_starts=7,
        batch_size=8,
        tau=0.5,
        train_freq=(8, "step"),
        gradient_steps=3,
        target_update_interval=16,
        exploration_fraction=0.3,
        exploration_initial_eps=0.9,
        exploration_final_eps=0.1,
        n_steps=2,
        policy_kwargs={"net_arch": [8]},
    ).settings
    ours = DQN(
        POLE,
        capacity=500,
        learning_starts=7,
        batch_size=8,
        mix=0.5,
        train_every=8,
        updates=3,
        target_every=16,
        epsilon_share=0.3,
        epsilon_start=0.9,
        epsilon_end=0.1,
        n=2,
        hidden=(8,),
    ).settings
    assert theirs == ours
    assert A2C(POLE, n_envs=2, n_steps=5, use_rms_prop=True, rms_prop_eps=1e-5).settings.environments == 2


def test_one_value_coefficient_is_half_of_the_other() -> None:
    """There the loss of values is c (V - R)², here c ½ (V - R)²."""
    values, returns = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 0.0])
    coefficient = A2C(POLE, vf_coef=0.25).settings.value_coefficient
    ours = coefficient * value_loss(values, returns).mean()
    assert float(ours) == pytest.approx(0.25 * float(torch.nn.functional.mse_loss(values, returns)))


def test_an_environment_that_is_made_already_is_the_only_one_and_the_batch_stays_as_large() -> None:
    env = Counter(4)
    agent = PPO("MlpPolicy", env, hidden=())
    assert (agent.settings.environments, agent.settings.rollout_steps) == (1, 8 * 64)
    agent.learn(total_timesteps=512)
    assert len(env.taken) == 512
    assert (PPO(env, rollout_steps=8, hidden=()).settings.rollout_steps) == 8


def test_evaluation_leaves_the_environment_in_training_as_it_is() -> None:
    env = Counter(4)
    agent = PPO(env, rollout_steps=6, minibatch_size=6, epochs=1, hidden=()).learn(6)
    assert env.clock == 2
    assert evaluate(agent, n_eval_episodes=2).lengths == (4, 4)
    assert evaluate(agent, env, 2).lengths == (4, 4)
    assert env.clock == 2


def test_an_agent_of_several_environments_goes_on_in_one(tmp_path: Path) -> None:
    PPO(POLE, rollout_steps=8, environments=4, hidden=(8,), seed=3).learn(32).save(tmp_path / "agent")
    agent = PPO.load(tmp_path / "agent", env=gym.make(POLE))
    assert (agent.settings.environments, agent.settings.rollout_steps, agent.steps) == (1, 32, 32)
    before = agent.actor.body.weights[0][0].detach().clone()
    assert len(evaluate(agent, episodes=2).returns) == 2
    agent.learn(32)
    assert not torch.equal(before, agent.actor.body.weights[0][0])


def test_an_environment_with_an_id_is_made_again_from_what_was_saved(tmp_path: Path) -> None:
    agent = PPO("MlpPolicy", gym.make(POLE, max_episode_steps=30), n_steps=64, hidden=(8,)).learn(64)
    agent.save(tmp_path / "agent")
    stored = json.loads((tmp_path / "agent" / "agent.json").read_text())
    assert (stored["env"], stored["env_arguments"]) == (POLE, {"max_episode_steps": 30})
    again = PPO.load(tmp_path / "agent")
    observation = np.full(4, 0.1, dtype=np.float32)
    assert again.predict(observation) == agent.predict(observation, deterministic=True)
    assert max(evaluate(again, episodes=3).lengths) <= 30
    wrapped = gym.wrappers.TransformReward(gym.make(POLE), lambda reward: 2.0 * float(reward))
    PPO(wrapped, n_steps=64, hidden=(8,)).save(tmp_path / "wrapped")
    assert json.loads((tmp_path / "wrapped" / "agent.json").read_text())["env"] is None


def test_learning_prints_stops_and_takes_numbers_without_a_fraction(capsys: pytest.CaptureFixture[str]) -> None:
    agent = SARSA("CliffWalking-v1", verbose=1, seed=1).learn(1e3)
    assert agent.steps == 1000
    assert "env_steps 1000" in capsys.readouterr().out
    seen: list[float] = []

    def twice(metrics: dict[str, float]) -> bool:
        seen.append(metrics["env_steps"])
        return len(seen) < 3

    SARSA("CliffWalking-v1").learn(1000, log=twice)
    assert len(seen) == 3


def test_what_an_agent_shows_of_itself_helps() -> None:
    agent = SARSA("CliffWalking-v1", step_size=0.5, seed=2).learn(episodes=3)
    assert repr(agent).startswith("<SARSA('CliffWalking-v1', seed=2, step_size=0.5): ")
    assert "3 episodes, mean return of the last 3: -" in repr(agent)
    assert {"learn", "predict", "save", "load", "settings", "episodes", "q"} <= set(dir(agent))
    assert "improve" not in dir(agent)
    assert set(dir(reinlm.classical)) == set(reinlm.classical.__all__)
    parameters = inspect.signature(PPO).parameters
    assert (parameters["clip"].default, parameters["environments"].default, parameters["seed"].default) == (0.2, 8, 0)


def test_a_class_in_a_file_is_an_environment_and_config_yaml_is_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "walk.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    words = ["a2c", "--env", "walk.py:Walk", "env.length=4", "--steps", "64", "n_steps=8", "ent_coef=0.01", "gamma=0.9"]
    with pytest.raises(SystemExit) as left:
        main(["classical", *words, "--evaluate", "2", "-o", "first", "-q"])
    assert left.value.code in (0, None)
    written = yaml.safe_load(Path("first/config.yaml").read_text())
    assert written["settings"].keys() == A2C.Settings.model_fields.keys()
    given = {"environments": 1, "rollout_steps": 8, "entropy_coefficient": 0.01, "discount": 0.9}
    assert given.items() <= written["settings"].items()
    with pytest.raises(SystemExit) as left:
        main(["classical", "first/config.yaml", "gamma=0.8", "--steps", "32", "-o", "second", "-q"])
    assert left.value.code in (0, None)
    again = yaml.safe_load(Path("second/config.yaml").read_text())
    assert again["settings"] == {**written["settings"], "discount": 0.8}
    assert (again["steps"], again["env_arguments"]) == (32, {"length": 4})
    agent = load("second/seeds/0/checkpoints/last")
    assert evaluate(agent, episodes=2).lengths == (4, 4)


def test_a_run_that_was_begun_with_other_defaults_goes_on_with_them(tmp_path: Path) -> None:
    """As by an earlier version, whose config.yaml held what was given, and whose A2C scaled no rewards."""
    config = ClassicalConfig(
        algorithm="a2c",
        env=POLE,
        steps=640,
        evaluation_episodes=1,
        settings={"normalize_rewards": False},
        output=str(tmp_path / "run"),
    )
    run_classical(config)
    file = tmp_path / "run" / "config.yaml"
    tree = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**tree, "settings": {}}))
    again = run_classical(config.model_copy(update={"settings": {}}), resume=True)
    assert again.agents[0].settings.normalize_rewards is False


def test_the_settings_are_listed_with_the_values_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*words: str) -> dict[str, Any]:
        with pytest.raises(SystemExit):
            main(["classical", "ppo", "--settings", "--json", *words])
        values: dict[str, Any] = json.loads(capsys.readouterr().out)["settings"]
        return values

    assert listed() == PPO.Settings().model_dump(mode="json")
    assert listed("clip_range=0.3")["clip"] == 0.3
