"""What cannot be made, what cannot be acted in, what an environment gets wrong, and its state on disk."""

from __future__ import annotations

import warnings
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from classical_helpers import Counter, Scripted
from gymnasium import spaces

from reinlm.classical import DQN, PPO, SARSA, ActorCritic, MonteCarlo, evaluate, find
from reinlm.classical.environments import make
from reinlm.classical.snapshot import capture, restore
from reinlm.classical.worlds import WORLDS, ShortCorridor
from reinlm.errors import InputError, RunError
from reinlm.runs.state import pack_state, unpack_state


@pytest.mark.parametrize(
    ("env", "message", "hint"),
    [
        ("CartPol-v1", "unknown environment 'CartPol-v1'", "did you mean 'CartPole-v1'?"),
        ("cartpole-v1", "cannot be made", "did you mean 'CartPole-v1'?"),
        ("Taxi-v3", "was retired or never existed", "its successor is 'Taxi-v4'"),
        ("CliffWalking-v0", "was retired or never existed", "its successor is 'CliffWalking-v1'"),
        ("PongNoFrameskip-v4", "no longer part of Gymnasium", "ALE/Pong-v5"),
        ("NChain-v0", "no longer part of Gymnasium", "retired without a successor"),
        ("reinlm/Gridworld3x3-v0", "unknown environment", "reinlm/Gridworld"),
        ("nothing like it", "unknown environment", "such as CartPole-v1"),
    ],
)
def test_an_environment_that_is_not_there_names_its_successor_or_the_nearest(env: str, message: str, hint: str) -> None:
    with pytest.raises(InputError) as error:
        make(env)
    assert message in error.value.message
    assert hint in (error.value.hint or "")


def test_an_environment_with_missing_dependencies_and_one_with_wrong_arguments_say_so() -> None:
    with pytest.raises(InputError, match="HalfCheetah-v5"):
        make("HalfCheetah-v5")
    with pytest.raises(InputError, match=r"'CartPole-v1' was not made.*colour"):
        make("CartPole-v1", colour="red")
    with pytest.raises(InputError, match="is made already and takes no arguments"):
        make(Counter(), length=3)


def test_an_unknown_algorithm_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown classical algorithm 'sarsaa' \(did you mean 'sarsa'\?"):
        find("sarsaa")


class Pair(gym.Env[Any, Any]):
    observation_space = spaces.Discrete(2)
    action_space = spaces.MultiDiscrete([2, 2])


class Words(gym.Env[Any, Any]):
    observation_space = spaces.Text(5)
    action_space = spaces.Discrete(2)


@pytest.mark.parametrize(
    ("kind", "env", "why", "instead"),
    [
        (SARSA, "CartPole-v1", "a row for each of finitely many states", "use dqn, ppo"),
        (SARSA, "Pendulum-v1", "a column for each of finitely many actions", "use ppo"),
        (DQN, "Pendulum-v1", "compares the values of finitely many", "use ppo"),
        (PPO, Pair, "it knows one choice, or numbers", "wrap it"),
        (PPO, Words, "no fixed number of values", "wrap the environment"),
    ],
)
def test_an_algorithm_that_cannot_act_in_a_space_says_why(kind: Any, env: Any, why: str, instead: str) -> None:
    with pytest.raises(InputError) as error:
        kind(env)
    assert why in error.value.message
    assert instead in (error.value.hint or "")


def test_settings_and_budgets_that_make_no_sense_are_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"discount": 1.5}, "discount"),
        ({"lerning_rate": 1.0}, "unknown key 'lerning_rate'"),
        ({"clip": 1.0}, "clip"),
    ]
    for settings, message in refused:
        with pytest.raises(InputError, match=message):
            PPO("CartPole-v1", **settings)
    agent = PPO("CartPole-v1")
    budgets: list[tuple[dict[str, Any], str]] = [
        ({}, "give one of them"),
        ({"steps": 1000, "episodes": 3}, "give one of them"),
        ({"steps": 10}, "512 steps at a time"),
        ({"episodes": 0}, "episodes must be at least 1"),
    ]
    for budget, message in budgets:
        with pytest.raises(InputError, match=message):
            agent.learn(**budget)
    with pytest.raises(InputError, match="seed must be at least 0"):
        PPO("CartPole-v1", seed=-1)
    with pytest.raises(InputError, match="8 environments cannot be made of one"):
        PPO(Counter(), environments=8)


def test_settings_go_by_their_greek_names_too() -> None:
    table = SARSA("CliffWalking-v1", alpha=0.3, gamma=0.9).settings
    assert (table.step_size, table.discount) == (0.3, 0.9)
    network = PPO("CartPole-v1", alpha=0.01, gamma=0.9, lam=0.5).settings
    assert (network.learning_rate, network.discount, network.smoothing) == (0.01, 0.9, 0.5)
    with pytest.raises(InputError, match="alpha and step_size are the same setting"):
        SARSA("CliffWalking-v1", alpha=0.3, step_size=0.1)
    with pytest.raises(InputError, match="unknown key 'lam'"):
        SARSA("CliffWalking-v1", lam=0.3)


@pytest.mark.parametrize(("reward", "state"), [(float("nan"), 1), (float("inf"), 1)])
def test_a_reward_that_is_no_number_ends_the_run_by_name(reward: float, state: int) -> None:
    with pytest.raises(RunError, match=r"Scripted gave reward (nan|inf) at step 2"):
        SARSA(Scripted([(1, 0.0, False, False), (state, reward, True, False)])).learn(episodes=2)


class Broken(Counter):
    """An observation with NaN in its third step."""

    def see(self) -> np.ndarray:
        return np.array([np.nan if self.clock == 3 else self.clock, 0.0], dtype=np.float32)


@pytest.mark.parametrize("length", [3, 9])
def test_an_observation_that_is_not_finite_ends_the_run_be_it_the_last_of_an_episode(length: int) -> None:
    for kind in (DQN, ActorCritic):
        with pytest.raises(RunError, match="Broken gave an observation with NaN or infinity at step 3"):
            kind(Broken(length), environments=1).learn(20)


def test_discrete_observations_become_one_hot_and_actions_may_start_anywhere() -> None:
    agent = PPO("FrozenLake-v1", environments=2, rollout_steps=4)
    assert agent.inputs == 16
    assert agent.observation.sum(-1).tolist() == [1.0, 1.0]
    assert agent.predict(3) in range(4)
    assert agent.predict(np.array([3, 4])).shape == (2,)

    class Shifted(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Discrete(2, start=5)

    world = Shifted()
    DQN(world, environments=1).learn(30)
    assert {int(action) for action in world.taken} == {5, 6}


def test_evaluation_is_repeatable_greedy_and_cut_off_where_a_policy_walks_in_circles() -> None:
    def away(_: Any) -> int:
        return 3

    found = evaluate(away, "CliffWalking-v1", 2)
    assert found.lengths == (1_000, 1_000)
    assert evaluate(lambda seen: 0, "FrozenLake-v1", 5).returns == evaluate(lambda seen: 0, "FrozenLake-v1", 5).returns
    one = evaluate(lambda seen: 1, "CartPole-v1", 20, seed=7)
    assert one.returns == evaluate(lambda seen: 1, "CartPole-v1", 20, seed=7).returns
    assert len(set(one.returns)) > 1  # each episode starts elsewhere
    with pytest.raises(InputError, match="episodes must be at least 1"):
        evaluate(away, "CliffWalking-v1", 0)
    with pytest.raises(InputError, match="give env"):
        evaluate(away)


def test_the_short_corridor_is_what_its_formula_says() -> None:
    rng = np.random.default_rng(0)
    found = evaluate(lambda seen: int(rng.random() < 0.6), ShortCorridor, 4000)
    assert found.mean_return == pytest.approx(ShortCorridor.value(0.6), abs=4 * found.std_return / 63)
    assert ShortCorridor.value(2 - 2**0.5) == pytest.approx(-11.657, abs=5e-4)


def test_our_worlds_pass_gymnasiums_own_checks() -> None:
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in WORLDS.keys() - {"MaximizationBias"}:  # the checker takes any action in any state
            check_env(gym.make(f"reinlm/{name}-v0").unwrapped, skip_render_check=True)
    world: Any = gym.make("reinlm/MaximizationBias-v0").unwrapped
    world.reset(seed=0)
    with pytest.raises(ValueError, match=r"state 0 has actions \[0, 1\], not 4"):
        world.step(4)
    grid: Any = gym.make("reinlm/Gridworld4x4-v0", render_mode="ansi").unwrapped
    assert "x" in grid.render()


# ------------------------------------------------------------------------------------------------ snapshots


@pytest.mark.parametrize(
    "env", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "Taxi-v4", "Blackjack-v1"]
)
def test_an_environment_goes_on_from_the_middle_of_an_episode(env: str) -> None:
    def record(world: Any) -> list[Any]:
        rows = []
        for _ in range(40):
            seen, reward, terminated, truncated, _ = world.step(world.action_space.sample() * 0)
            rows.append((np.asarray(seen).tolist(), float(reward), terminated, truncated))
            if terminated or truncated:
                rows.append(np.asarray(world.reset()[0]).tolist())
        return rows

    world = make(env)
    pristine = capture(world)
    world.reset(seed=3)
    if env != "Blackjack-v1":
        for _ in range(5):
            world.step(world.action_space.sample() * 0)
    stored = unpack_state(*pack_state(capture(world, pristine)))
    other = make(env)
    other.reset(seed=99)
    assert restore(other, stored)
    assert record(other) == record(world)
    assert all("P" not in layer for layer in stored)  # what has not moved is not stored


class Physics(Counter):
    def __init__(self) -> None:
        super().__init__()
        self.world = object()


def test_an_environment_that_holds_more_than_values_begins_anew_and_says_so() -> None:
    assert capture(Physics()) is None
    with pytest.warns(UserWarning, match="cannot be saved, so the episode that was interrupted begins again"):
        assert not restore(Physics(), None, "Physics")
    agent = ActorCritic(Physics, environments=1).learn(4)
    state = agent.state_dict()
    other = ActorCritic(Physics, environments=1)
    with pytest.warns(UserWarning, match="Physics"):
        other.load_state_dict(state)
    assert other.observation[0, 0] == 0.0
    other.learn(4)


def test_queues_and_generators_are_values_too() -> None:
    class Odd(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.queue = deque([1, 2], maxlen=3)
            self.generator = np.random.default_rng(4)

    world, other = Odd(), Odd()
    world.generator.random(5)
    world.queue.append(7)
    assert restore(other, unpack_state(*pack_state(capture(world))))
    assert other.queue == world.queue
    assert other.queue.maxlen == 3
    assert other.generator.random() == world.generator.random()


def test_monte_carlo_starts_anywhere_in_a_table_alone() -> None:
    agent = MonteCarlo("Blackjack-v1", exploring_starts=True, seed=0)
    assert {agent.start()[1] for _ in range(50)} == {0, 1}
