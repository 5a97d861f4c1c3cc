"""What a user of Stable-Baselines3 types out of habit: understood, or answered in one line that says what to write."""

from __future__ import annotations

import json
import re
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
from reinlm.errors import InputError, RunError

POLE, LAKE = "CartPole-v1", "FrozenLake-v1"
SMALL: dict[str, Any] = {"environments": 1, "rollout_steps": 8, "hidden": ()}


class Old(Counter):
    def reset(self) -> Any:  # type: ignore[override]
        return np.zeros(2, dtype=np.float32)


BREAKS = """
from classical_helpers import Counter

class Breaks(Counter):
    def step(self, action):
        if self.clock == 2:
            return 1 / 0
        return super().step(action)
"""


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
    "an argument that the environment does not have": (
        lambda pole, lake: PPO(POLE, env_arguments={"colour": 3}),
        "unexpected keyword argument 'colour' (its arguments are sutton_barto_reward, render_mode)",
    ),
    "an argument that a class does not have": (
        lambda pole, lake: PPO(Counter, env_arguments={"colour": 3}),
        "(its arguments are env_arguments={…}, or env.KEY=VALUE at the command line)",
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
    "a device": (lambda pole, lake: PPO.load("x", device="cuda"), "device='cuda' is not supported"),
    "custom objects": (lambda pole, lake: PPO.load("x", custom_objects={"a": 1}), "load takes no custom_objects"),
    "system info": (lambda pole, lake: PPO.load("x", print_system_info=True), "load prints no system_info"),
    "a budget that is text": (lambda pole, lake: pole.learn("1000"), "steps must be a whole number, not '1000'"),
    "a log that is text": (lambda pole, lake: lake.learn(3000, log="x"), "log is a function of the metrics, not 'x'"),
    "a clip of values": (lambda pole, lake: PPO(POLE, clip_range_vf=0.2), "write value_clip=0.2, which clips"),
    "a policy of several inputs": (
        lambda pole, lake: PPO("MultiInputPolicy", POLE, **SMALL),
        "MultiInputPolicy reads observations of several parts, and those of CartPole-v1 are Box",
    ),
    "a misspelt setting of a run": (
        lambda pole, lake: ClassicalConfig(algorithm="ppo", env=POLE, total_timesteps=9),
        "unknown key 'total_timesteps' (Stable-Baselines3's total_timesteps is --steps)",
    ),
    "a class in a run's settings": (
        lambda pole, lake: ClassicalConfig(algorithm="ppo", env=Counter, steps=9),
        "env is the text that config.yaml holds, not Counter (a Gymnasium id, or",
    ),
    "an unknown algorithm of a run": (
        lambda pole, lake: ClassicalConfig(algorithm="sac", env=POLE, steps=9),
        "there is no algorithm 'sac' (use PPO for continuous actions)",
    ),
    "an output beside the settings": (
        lambda pole, lake: run_classical(ClassicalConfig(algorithm="ppo", env=POLE, steps=9), output="x"),
        "run_classical has no output (write ClassicalConfig(output=…))",
    ),
    "settings that are a mapping": (
        lambda pole, lake: run_classical({"algorithm": "ppo"}),  # type: ignore[arg-type]
        "run_classical takes a ClassicalConfig, not {'algorithm': 'ppo'}",
    ),
    "a reset of Gym": (
        lambda pole, lake: PPO(Old, **SMALL),
        "Old.reset must take seed and options (gymnasium.Env) (def reset(self, *, seed=None, options=None))",
    ),
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
    assert (PPO(POLE, hidden=9).settings.hidden, PPO(POLE, net_arch=8).settings.hidden) == ((9,), (8,))
    drawn = {QLearning(LAKE, seed=None, verbose=2).seed for _ in range(3)}
    assert len(drawn) == 3
    assert min(drawn) >= 0
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


# ------------------------------------------------------------------------------------------------ the command line


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["classical", *words])
    found = capsys.readouterr()
    return int(left.value.code or 0), found.out, found.err


@pytest.mark.parametrize("env", ["CartPole-v1", "reinlm/MaximizationBias-v0"])
def test_what_cannot_be_shown_is_refused_before_training(
    env: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mode = "text" if env.startswith("Cart") else "video"
    words = ["reinforce", "--env", env, "--episodes", "1", "--render", mode, "-o", str(tmp_path / "run")]
    code, _, err = called(capsys, *words)
    assert (code, len(err.splitlines())) == (2, 2)
    assert f"{env} has no {mode}" in err
    assert not (tmp_path / "run").exists()


def test_an_error_of_the_environment_is_one_line_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "walk.py").write_text(BREAKS)
    monkeypatch.chdir(tmp_path)
    words = ["reinforce", "--env", "walk.py:Breaks", "--episodes", "3", "-q", "-o", "run"]
    code, _, err = called(capsys, *words)
    assert (code, len(err.splitlines())) == (2, 1)
    assert re.match(r"error: environment walk.py:Breaks: ZeroDivisionError: division by zero \(.*walk.py:7\)$", err)
    with pytest.raises(RunError) as raised:
        main(["classical", *words, "--overwrite", "--debug"])
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_the_table_says_what_its_figures_are_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for seeds, episodes in (("1", "3"), ("2", "1e2")):
        words = ["sarsa", "--env", "CliffWalking-v1", "--episodes", episodes, "--seeds", seeds, "--evaluate", "1", "-q"]
        code, out, _ = called(capsys, *words, "-o", str(tmp_path / seeds))
        assert code == 0
        shown.append(out)
    assert "online return, all episodes" in shown[0]
    assert "std" not in shown[0]
    assert "online return, last 100 episodes" in shown[1]
    assert "std over seeds" in shown[1]


@pytest.mark.parametrize("word", ["1.5", "many", "inf", "nan"])
def test_a_budget_is_a_whole_number(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = called(capsys, "sarsa", "--env", "CliffWalking-v1", "--steps", word)
    assert code == 2
    assert err.startswith(f"error: --steps: input should be a valid integer (given: '{word}')\n")
