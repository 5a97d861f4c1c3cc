"""What a user of Stable-Baselines3 types out of habit: understood, or answered in one line that says what to write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from classical_helpers import Counter
from gymnasium import spaces

from reinlm.classical import PPO, SARSA, QLearning, ValueIteration, evaluate, load
from reinlm.classical.run import ClassicalConfig, run_classical
from reinlm.classical.stand_in import describe_space, read_space
from reinlm.cli import main
from reinlm.errors import InputError

POLE, LAKE = "CartPole-v1", "FrozenLake-v1"
SMALL: dict[str, Any] = {"environments": 1, "rollout_steps": 8, "hidden": ()}


@pytest.fixture(scope="module")
def pole() -> PPO:
    return PPO(POLE, **SMALL)


@pytest.fixture(scope="module")
def lake() -> QLearning:
    return QLearning(LAKE)


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "an argument of the environment": (
        lambda pole, lake: QLearning(LAKE, map_name="8x8"),
        "map_name is an argument of FrozenLake-v1, not a setting of q_learning (write env_arguments={'map_name': '8x8'})",
    ),
    "env_kwargs": (
        lambda pole, lake: QLearning(LAKE, env_kwargs={}),
        "env_kwargs is no setting of q_learning (write env_arguments={…}, or env.KEY=VALUE at the command line)",
    ),
    "the pair of reset": (
        lambda pole, lake: pole.predict(pole.env.envs[0].reset()),
        "reset gives (observation, info), and predict takes an observation (write observation, info = env.reset())",
    ),
    "too few numbers": (
        lambda pole, lake: pole.predict([1, 2, 3]),
        "an observation of CartPole-v1 has 4 numbers, not 3",
    ),
    "a word": (lambda pole, lake: pole.predict("up"), "'up' is no observation of CartPole-v1, nor several of them"),
    "a state": (
        lambda pole, lake: pole.predict(np.zeros(4), state=np.zeros(2)),
        "predict takes no state: networks here have no memory (leave state out)",
    ),
    "a state in second place": (
        lambda pole, lake: pole.predict(np.zeros(4), None),
        "deterministic is True or False, not None",
    ),
    "an unknown argument of predict": (
        lambda pole, lake: pole.predict(np.zeros(4), greedy=True),
        "predict has no greedy",
    ),
    "a state that is none": (lambda pole, lake: lake.predict(1000), "1000 is no observation of FrozenLake-v1"),
    "no number": (lambda pole, lake: lake.predict("x"), "'x' is no observation of FrozenLake-v1"),
    "a misspelt argument": (
        lambda pole, lake: evaluate(lake, n_eval_episode=3),
        "evaluate has no n_eval_episode (did you mean n_eval_episodes?)",
    ),
    "episodes twice": (
        lambda pole, lake: evaluate(lake, LAKE, n_eval_episodes=2, episodes=3),
        "episodes and n_eval_episodes are the same; give one of them",
    ),
    "rewards of episodes": (lambda pole, lake: evaluate(lake, return_episode_rewards=True), "returns and .lengths"),
    "a number of episodes": (
        lambda pole, lake: evaluate(lake, episodes="3"),  # type: ignore[arg-type]
        "episodes must be a whole number, not '3'",
    ),
    "a device": (lambda pole, lake: PPO.load("x", device="cuda"), "device='cuda' is not to be had"),
    "custom objects": (lambda pole, lake: PPO.load("x", custom_objects={"a": 1}), "load takes no custom_objects"),
    "system info": (lambda pole, lake: PPO.load("x", print_system_info=True), "load prints no system_info"),
    "a setting of a stored agent": (
        lambda pole, lake: PPO.load("x", n_steps=64),
        "load takes no n_steps: an agent keeps the settings that it was saved with",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_there_is_answered_with_what_to_write(case: str, pole: PPO, lake: QLearning) -> None:
    call, said = REFUSED[case]
    with pytest.raises(InputError) as raised:
        call(pole, lake)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_means_the_same_is_taken(pole: PPO, lake: QLearning) -> None:
    assert QLearning(LAKE, learning_rate=0.3).settings.step_size == 0.3
    observation = np.zeros(4, dtype=np.float32)
    assert pole.predict(observation, state=None, episode_start=None, deterministic=True) == pole.predict(observation)
    mean, std = evaluate(lake, n_eval_episodes=3)
    found = evaluate(lake, episodes=3)
    assert (mean, std) == (found.mean_return, found.std_return)
    assert evaluate(lake, LAKE, 2, is_slippery=False).lengths  # an argument of the environment is still one


def test_the_table_is_named_where_it_is_looked_for_under_another_name(lake: QLearning, pole: PPO) -> None:
    for name in ("Q", "q_table"):
        with pytest.raises(AttributeError, match=r"the table of action values is q \[S, A\]"):
            getattr(lake, name)
    with pytest.raises(AttributeError, match=r"no attribute 'Q'$"):
        getattr(pole, name[0].upper())


# ------------------------------------------------------------------------------------------------ what is stored


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.array([1.0, 0.1], dtype=np.float32), (2,), np.float32),
        spaces.Box(0, 255, (2, 3), np.uint8),
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(4),
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,))])}),
    ],
)
def test_a_space_is_described_and_read_back(space: spaces.Space[Any]) -> None:
    assert read_space(json.loads(json.dumps(describe_space(space)))) == space


def test_a_space_of_another_kind_is_not_described() -> None:
    assert describe_space(spaces.Text(3)) is None
    assert describe_space(spaces.Tuple([spaces.Text(3)])) is None


def test_an_agent_that_was_made_with_an_environment_predicts_without_it(tmp_path: Path) -> None:
    agent = PPO("MlpPolicy", Counter(4), hidden=(4,), n_steps=16).learn(16)
    agent.save(tmp_path / "a")
    again = PPO.load(tmp_path / "a", device="cpu", print_system_info=False, custom_objects=None)
    observation = np.array([2.0, 1.0], dtype=np.float32)
    assert again.predict(observation) == agent.predict(observation)
    assert again.env_name == "Counter"
    for call in (lambda: again.learn(16), lambda: evaluate(again, episodes=1)):
        with pytest.raises(InputError, match=r"made with an environment \(Counter\).*load\('.*', env=…\)"):
            call()
    again.save(tmp_path / "b")
    assert PPO.load(tmp_path / "b").predict(observation) == agent.predict(observation)
    assert PPO.load(tmp_path / "b", env=Counter(4)).learn(16).steps == 32


def test_an_agent_without_what_it_needs_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ValueIteration(gym.wrappers.OrderEnforcing(gym.make(LAKE).unwrapped)).save(tmp_path / "planner")
    stored = json.loads((tmp_path / "planner" / "agent.json").read_text())
    (tmp_path / "planner" / "agent.json").write_text(json.dumps({**stored, "env": None}))
    with pytest.raises(InputError, match="not with the id of one: give env"):  # its model is the environment's
        load(tmp_path / "planner")
    (tmp_path / "walk.py").write_text("from classical_helpers import Counter\n")
    monkeypatch.chdir(tmp_path)
    PPO("walk.py:Counter", **SMALL).save("walker")
    monkeypatch.chdir("/")
    with pytest.raises(InputError, match=r"no such file.*load\('.*walker', env=…\) takes the environment itself"):
        load(str(tmp_path / "walker"))


def test_a_run_folder_stands_for_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for seeds in (1, 2):
        config = {"algorithm": "sarsa", "env": "CliffWalking-v1", "episodes": 3, "evaluation_episodes": 1}
        run_classical(ClassicalConfig(**config, seeds=seeds, output=f"run{seeds}"))
    agent = SARSA.load("run1")
    assert (len(agent.episodes), agent.env_name) == (3, "CliffWalking-v1")
    assert len(load("run2/seeds/1").episodes) == 3
    with pytest.raises(InputError, match=r"a run of 2 seeds.*take one: run2/seeds/0/checkpoints/last"):
        load("run2")
    agent.save("saved")
    with pytest.raises(InputError, match=r"saved.zip holds no agent .there is one in the folder saved"):
        load("saved.zip")
    for words, said in (
        (["classical", "run1"], "its recipe is run1/config.yaml"),
        (
            ["eval", "--model", "run1/seeds/0/checkpoints/last", "--data", "x"],
            "reinlm.classical.load('run1/seeds/0/checkpoints/last')",
        ),
        (["generate", "--model", "run1", "--prompt", "hello"], "reinlm.classical.load('run1')"),
    ):
        with pytest.raises(SystemExit) as left:
            main(words)
        err = capsys.readouterr().err
        assert left.value.code == 2, err
        assert said in err
        assert len(err.splitlines()) == 2
