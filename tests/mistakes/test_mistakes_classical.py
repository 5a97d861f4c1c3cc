"""What somebody who knows Stable-Baselines3 writes first: each is taken, or answered by one line that says what to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import reinlm.classical
from reinlm.classical import A2C, DQN, PPO, SARSA, TRPO, evaluate
from reinlm.cli import main
from reinlm.errors import InputError

POLE = "CartPole-v1"


class Sees(gym.Env[Any, Any]):
    """An environment with a space of observations; two actions, and episodes of three steps."""

    def __init__(self, space: spaces.Space[Any] | None = None) -> None:
        self.observation_space = space or spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(0)
        self.clock = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.clock += 1
        return self.observation_space.sample(), 1.0, self.clock == 3, False, {}


class OldGym:
    """As `gym` made them: no gymnasium.Env, and `step` gives four values."""

    observation_space, action_space = Sees().observation_space, Sees().action_space

    def reset(self) -> Any: ...

    def step(self, action: Any) -> Any: ...


class StopOnReward:
    """A callback there."""


class EvalCallback:
    """Another."""


def imported(name: str) -> None:
    exec(f"from reinlm.classical import {name}")


def anything(value: Any) -> Any:
    """The same, of a type that no checker knows."""
    return value


MISTAKES: list[tuple[str, Callable[[], Any], str]] = [
    ("PPO()", lambda: PPO(), 'such as PPO("CartPole-v1")'),
    ('PPO("MlpPolicy")', lambda: PPO("MlpPolicy"), "ppo needs an environment"),
    ('PPO("CnnPolicy", env)', lambda: PPO("CnnPolicy", POLE), "no convolutional network"),
    ('PPO("MlpLstmPolicy", env)', lambda: PPO("MlpLstmPolicy", POLE), "networks are linear layers"),
    ("PPO(MlpPolicy, env)", lambda: PPO(StopOnReward, POLE), "write PPO(env); hidden="),
    ("PPO(policy, env, 3e-4)", lambda: PPO("MlpPolicy", POLE, 3e-4), "settings by name"),
    ('SARSA("MlpPolicy", env)', lambda: SARSA("MlpPolicy", "Taxi-v4"), "sarsa has a table and no network"),
    ("a vector of environments", lambda: PPO("MlpPolicy", gym.make_vec(POLE, 2)), "environments=8"),
    ("a list of environments", lambda: PPO([gym.make(POLE)]), "an object of type list"),
    ("an environment of gym", lambda: PPO("MlpPolicy", OldGym()), "derive from gymnasium.Env"),
    ("a function that makes none", lambda: PPO(lambda: None), "is None, not an environment"),
    ("an environment, and eight of it", lambda: PPO(gym.make(POLE), environments=8), "set environments=1"),
    ("continuous actions for DQN", lambda: DQN("Pendulum-v1"), "use ppo"),
    ("pictures", lambda: PPO(Sees(spaces.Box(0, 255, (8, 8, 3), np.uint8))), "no convolutional network here"),
    ("text", lambda: PPO(Sees(spaces.Text(5))), "wrap the environment so that its observations are a Box"),
    ("total_timesteps in the constructor", lambda: PPO(POLE, total_timesteps=9), "write learn(total_timesteps="),
    ("callback in the constructor", lambda: PPO(POLE, callback=None), "write learn(log=f)"),
    ("lr", lambda: PPO(POLE, lr=1e-3), "did you mean 'learning_rate'?"),
    ("lr of a table", lambda: SARSA("Taxi-v4", lr=0.1), "did you mean 'step_size'?"),
    ("a schedule as a function", lambda: PPO(POLE, learning_rate=lambda left: left), "schedule='linear'"),
    ("a clip range as a function", lambda: PPO(POLE, clip_range=lambda left: left), "clip_schedule='linear'"),
    ("clip_range_vf", lambda: PPO(POLE, clip_range_vf=0.2), "value_clip"),
    ("n_steps twice", lambda: PPO(POLE, n_steps=9, rollout_steps=8), "n_steps and rollout_steps are the same setting"),
    ("net_arch of two sizes", lambda: PPO(POLE, net_arch={"pi": [8], "vf": [9]}), "hidden=(64, 64) for both"),
    (
        "another activation",
        lambda: PPO(POLE, policy_kwargs={"activation_fn": "ReLU"}),
        "linear layers with tanh between them",
    ),
    ("a feature extractor", lambda: DQN(POLE, policy_kwargs={"features_extractor_class": Sees}), "hidden=(64, 64)"),
    ("exploration by state", lambda: PPO(POLE, use_sde=True), "no state-dependent exploration"),
    ("a GPU", lambda: PPO(POLE, device="cuda"), "leave device out"),
    ("TensorBoard", lambda: PPO(POLE, tensorboard_log="tb"), "reinlm classical --tensorboard"),
    ("verbose=3", lambda: PPO(POLE, verbose=3), "verbose is 0, 1 or 2"),
    ("seed=1.5", lambda: PPO(POLE, seed=1.5), "seed must be a whole number"),
    ("train_freq in episodes", lambda: DQN(POLE, train_freq=(1, "episode")), "such as train_every=4"),
    ("gradient_steps=-1", lambda: DQN(POLE, gradient_steps=-1), "give updates the number that train_every has"),
    ("a prioritised memory", lambda: DQN(POLE, replay_buffer_class=Sees), "capacity is its size"),
    ("buffer_size for PPO", lambda: PPO(POLE, buffer_size=9), "unknown key 'buffer_size'"),
    ("A2C with Adam", lambda: A2C(POLE, use_rms_prop=False), "actor_critic has Adam"),
    ("learn()", lambda: PPO(POLE).learn(), "such as learn(100_000)"),
    ("learn(100), less than a batch", lambda: PPO(POLE).learn(100), "lower rollout_steps or environments"),
    ("learn with both", lambda: PPO(POLE).learn(512, total_timesteps=512), "are the same; give one"),
    ("half a step", lambda: PPO(POLE).learn(512.5), "steps must be a whole number"),
    ("a callback", lambda: PPO(POLE).learn(512, callback=StopOnReward()), "no callback StopOnReward (learn(log=f)"),
    ("EvalCallback", lambda: PPO(POLE).learn(512, callback=EvalCallback()), "eval_freq keeps the best weights"),
    ("log_interval", lambda: PPO(POLE).learn(512, log_interval=4), "learn(log=f) calls f(metrics)"),
    ("reset_num_timesteps", lambda: PPO(POLE).learn(512, reset_num_timesteps=False), "its schedules start again"),
    ("a tb_log_name", lambda: PPO(POLE).learn(512, tb_log_name="x"), "reinlm classical --tensorboard"),
    ("evaluate with render=True", lambda: evaluate(PPO(POLE), render=anything(True)), "--render video"),
    (
        "evaluate in a vector",
        lambda: evaluate(PPO(POLE), anything(gym.make_vec(POLE, 2))),
        "holds several environments",
    ),
    ("a file of theirs", lambda: PPO.load("there.zip"), "holds no agent"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[name for name, _, _ in MISTAKES])
def test_a_call_that_means_nothing_here_is_answered_by_one_line_that_says_what_to_write(
    mistake: tuple[str, Callable[[], Any], str],
) -> None:
    _, call, words = mistake
    with pytest.raises(InputError) as error:
        call()
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("evaluate_policy", "use evaluate"),
        ("make_vec_env", "environments=8"),
        ("SAC", "PPO"),
        ("BaseCallback", "learn(log=f)"),
    ],
)
def test_what_one_imports_there_is_answered(name: str, ours: str) -> None:
    with pytest.raises(ImportError) as error:
        imported(name)
    assert ours in str(error.value)
    assert not hasattr(reinlm.classical, name)


def test_attributes_of_a_model_are_answered_and_an_unknown_one_is_an_ordinary_error() -> None:
    agent = SARSA("Taxi-v4")
    with pytest.raises(AttributeError, match="calls num_timesteps is steps here"):
        _ = agent.num_timesteps  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"SARSA has no attribute 'colour'$"):
        _ = agent.colour  # type: ignore[attr-defined]
    assert not hasattr(agent, "get_env")


def test_an_action_that_is_unpacked_says_that_it_stands_alone() -> None:
    agent = PPO(POLE, hidden=())
    action = agent.predict(np.zeros(4, dtype=np.float32))
    assert action in (0, 1)
    with pytest.raises(InputError, match=r"action = agent\.predict"):
        action, _ = agent.predict(np.zeros(4, dtype=np.float32))
    with pytest.raises(InputError, match=r"action = agent\.predict"):
        action, _ = anything(SARSA("Taxi-v4").predict(3))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ppo", "--env", "CartPole-v2", "--steps", "512"], "its successor is 'CartPole-v1'"),
        (["ppo", "--env", "MountainCra-v0", "--steps", "512"], "did you mean 'MountainCar-v0'?"),
        (["ppo", "--env", "mine.py", "--steps", "512"], "name the class in the file: mine.py:CLASS"),
        (["ppo", "--env", "mine.py:Walk", "--steps", "512"], "no such file: mine.py"),
        (["ppo", "--env", "gymnasium:Nothing", "--steps", "512"], "gymnasium has no 'Nothing'"),
        (["ppo", "--env", POLE, "--total-timesteps", "512"], "total_timesteps is --steps"),
        (["ppo", "--env", POLE, "--n-envs", "2"], "environments"),
        (["ppo", "--env", POLE, "--steps", "512", "policy=CnnPolicy"], "no convolutional network"),
        (["ppo", "--env", POLE, "--steps", "512", "verbose=1"], "--quiet"),
        (["dqn", "--env", "Pendulum-v1", "--steps", "512"], "use ppo"),
        (["ppo", "--env", POLE, "--steps", "512", "seed=1"], "write --seed"),
        (["ppo", "--env", POLE, "total_timesteps=512"], "--steps 100000"),
        (["config.yaml"], "no such recipe: config.yaml"),
        (["--settings"], "classical ppo --settings"),
        (["ppo", "--settings", "lr=1"], "did you mean 'learning_rate'?"),
    ],
)
def test_on_the_command_line_too(
    words: list[str], message: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["classical", *words])
    err = capsys.readouterr().err
    assert left.value.code == 2
    assert message in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) <= 2
    assert list(tmp_path.iterdir()) == []


def test_trpo_takes_their_names_for_its_own() -> None:
    settings = TRPO(POLE, target_kl=0.02, cg_max_steps=7, n_critic_updates=3, batch_size=99, hidden=()).settings
    assert (settings.divergence, settings.cg_iterations, settings.critic_epochs, settings.minibatch_size) == (
        0.02,
        7,
        3,
        99,
    )
