"""Tables against numbers worked out by hand (ALGORITHMS §15: γ = 0.9, α = 0.1), and what must always hold of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from classical_helpers import Scripted, Walk

from reinlm.classical import (
    SARSA,
    TD,
    DoubleQLearning,
    ExpectedSARSA,
    MonteCarlo,
    OffPolicyMonteCarlo,
    QLearning,
)
from reinlm.classical.tabular.exploration import (
    epsilon_greedy,
    epsilon_greedy_probabilities,
    greedy,
    softmax_probabilities,
)
from reinlm.errors import InputError

pytestmark = pytest.mark.no_cover

Q = np.array([[1.0, 2.0], [0.5, 1.5], [0.0, 0.0]])


def one_step(kind: type, *, terminated: bool = False, truncated: bool = False, epsilon: float = 0.2) -> Any:
    """Q(0, ·) after a step from 0 to 1 with reward 1, and then one that ends with reward 0 from 1."""
    script = [(1, 1.0, terminated, truncated)]
    agent = kind(Scripted(script), discount=0.9, step_size=0.1, epsilon=epsilon)
    agent.q[:] = Q
    agent.choose = lambda row: 0
    return agent


@pytest.mark.parametrize(
    ("kind", "epsilon", "expected"), [(QLearning, 0.0, 1.135), (ExpectedSARSA, 0.2, 1.126), (SARSA, 0.0, 1.135)]
)
@pytest.mark.parametrize("truncated", [True])
def test_vector_15_one_step_targets_keep_the_bootstrap_where_an_episode_is_cut_off(
    kind: type, epsilon: float, expected: float, truncated: bool
) -> None:
    agent = one_step(kind, truncated=truncated, epsilon=epsilon)
    agent.learn(episodes=1)
    assert agent.q[0, 0] == pytest.approx(expected, abs=1e-12)
    np.testing.assert_array_equal(agent.q[1:], Q[1:])


def test_vector_15_sarsa_takes_the_action_that_it_learns_from() -> None:
    agent = SARSA(Scripted([(1, 1.0, False, False), (2, 0.0, True, False)]), discount=0.9, step_size=0.1, epsilon=0.0)
    agent.q[:] = Q
    planned = iter([0, 0])
    agent.explore = lambda row: next(planned)  # type: ignore[method-assign]
    agent.learn(episodes=1)
    assert agent.q[0, 0] == pytest.approx(1.045, abs=1e-12)
    world: Any = agent.env.unwrapped
    assert world.taken == [0, 0]
    assert agent.q[1, 0] == pytest.approx(0.45, abs=1e-12)  # R = 0 and the end: 0.5 - 0.1 · 0.5


@pytest.mark.parametrize("kind", [SARSA, ExpectedSARSA, QLearning])
def test_vector_15_a_terminal_state_is_worth_nothing(kind: type) -> None:
    agent = one_step(kind, terminated=True)
    agent.learn(episodes=1)
    assert agent.q[0, 0] == pytest.approx(1.0, abs=1e-12)


def test_vector_15_double_q_learning_lets_one_table_choose_and_the_other_judge() -> None:
    agent = one_step(DoubleQLearning, truncated=True)
    first, second = np.zeros((3, 2)), np.zeros((3, 2))
    first[0, 0], first[1], second[1] = 1.0, [0.5, 1.5], [2.0, 1.0]
    agent.pair = (first, second)
    agent.explore = lambda row: 0
    agent.rng = np.random.default_rng(next(s for s in range(99) if np.random.default_rng(s).random() < 0.5))
    agent.learn(episodes=1)
    assert agent.pair[0][0, 0] == pytest.approx(1.09, abs=1e-12)
    assert agent.pair[1][0, 0] == 0.0
    assert agent.q[0, 0] == pytest.approx(0.545, abs=1e-12)


A, B = 0, 1
EPISODE = [(B, 1.0, False, False), (A, 0.0, False, False), (A, 2.0, True, False)]
"""(A, 1), (B, 0), (A, 2)"""


@pytest.mark.parametrize(("visits", "expected"), [("first", 2.62), ("every", 2.31)])
def test_vector_15_first_and_every_visit_returns(visits: str, expected: float) -> None:
    agent = MonteCarlo(Scripted(EPISODE, actions=1), discount=0.9, visits=visits)
    agent.learn(episodes=1)
    assert agent.q[A, 0] == pytest.approx(expected, abs=1e-12)
    assert agent.q[B, 0] == pytest.approx(1.8, abs=1e-12)
    assert agent.counts[A, 0] == (1 if visits == "first" else 2)


def test_monte_carlo_means_all_returns_or_follows_the_newest() -> None:
    two = [[(B, 1.0, True, False)], [(B, 4.0, True, False)]]
    mean = MonteCarlo(Scripted(*two, actions=1)).learn(episodes=2)
    assert mean.q[A, 0] == pytest.approx(2.5)
    newest = MonteCarlo(Scripted(*two, actions=1), step_size=0.5).learn(episodes=2)
    assert newest.q[A, 0] == pytest.approx(0.5 * 0.5 + 0.5 * 4.0)


def test_a_cut_off_episode_is_bootstrapped_or_left_out() -> None:
    script = [(B, 1.0, False, True)]
    kept = MonteCarlo(Scripted(script, actions=1), discount=0.9)
    kept.q[B, 0] = 10.0
    assert kept.learn(episodes=1).q[A, 0] == pytest.approx(10.0)
    dropped = MonteCarlo(Scripted(script, actions=1), discount=0.9, truncated="drop")
    dropped.q[B, 0] = 10.0
    assert dropped.learn(episodes=1).q[A, 0] == 0.0
    assert dropped.counts.sum() == 0


def test_exploring_starts_begin_anywhere_with_anything_and_go_on_greedily() -> None:
    agent = MonteCarlo("FrozenLake-v1", exploring_starts=True, env_arguments={"is_slippery": False})
    starts = {agent.start() for _ in range(2000)}
    assert starts == {(row, action) for row in range(16) for action in range(4)}
    agent.q[5] = [0.0, 1.0, 0.0, 0.0]
    assert {agent.choose(5) for _ in range(50)} == {1}


# ------------------------------------------------------------------------------------------------ prediction


def test_td_zero_moves_towards_reward_and_next_value_and_terminal_states_are_worth_nothing() -> None:
    agent = TD(Scripted([(1, 1.0, False, False), (2, 2.0, True, False)]), discount=0.9, step_size=0.1)
    agent.v[:] = [0.0, 1.0, 5.0]
    agent.learn(episodes=1)
    np.testing.assert_allclose(agent.v, [0.1 * 1.9, 1.0 + 0.1 * (2.0 - 1.0), 5.0], atol=1e-15)


@pytest.mark.parametrize(
    ("settings", "targets"),
    [
        ({"n": 2}, [1 + 0.9 * 2 + 0.81 * 3, 2 + 0.9 * 4, 4.0]),
        ({"smoothing": 1.0}, [1 + 0.9 * 2 + 0.81 * 4, 2 + 0.9 * 4, 4.0]),
        ({"smoothing": 0.0}, [1 + 0.9 * 2.0, 2 + 0.9 * 3.0, 4.0]),
    ],
)
def test_n_step_and_lambda_targets_use_the_values_at_the_start_of_the_episode(settings: Any, targets: Any) -> None:
    script = [(1, 1.0, False, False), (2, 2.0, False, False), (3, 4.0, True, False)]
    agent = TD(Scripted(script, states=4), discount=0.9, step_size=0.5, **settings)
    agent.v[:] = before = np.array([1.0, 2.0, 3.0, 7.0])
    agent.learn(episodes=1)
    np.testing.assert_allclose(agent.v[:3], before[:3] + 0.5 * (np.array(targets) - before[:3]), atol=1e-12)
    assert agent.v[3] == 7.0


@pytest.mark.parametrize("settings", [{}, {"n": 3}, {"smoothing": 0.8}, {"smoothing": 1.0}])
def test_every_kind_of_return_finds_the_exact_values_of_a_random_walk(settings: Any) -> None:
    agent = TD(Walk(), step_size=0.01, **settings).learn(episodes=3000)
    np.testing.assert_allclose(agent.v[1:6], np.arange(1, 6) / 3 - 1, atol=0.1)


def test_td_evaluates_the_policy_that_it_is_given() -> None:
    right = np.tile([0.0, 1.0], (21, 1))
    agent = TD("reinlm/RandomWalk-v0", policy=right, step_size=0.5).learn(episodes=60)
    assert agent.v[10] == pytest.approx(1.0, abs=1e-3)
    assert agent.predict(10) == 1
    with pytest.raises(InputError, match=r"policy has shape \(2, 2\), not \(21, 2\)"):
        TD("reinlm/RandomWalk-v0", policy=np.ones((2, 2)))


# ------------------------------------------------------------------------------------------------ off-policy


@pytest.mark.parametrize(("estimator", "first", "second"), [("weighted", 3.0, 3.0), ("ordinary", 6.0, 3.0)])
def test_importance_weights_of_an_episode_by_hand(estimator: str, first: float, second: float) -> None:
    """Behaviour ½, ½; the target always takes action 0. Taken: 0, and then the end: ρ = 2 once."""
    agent = OffPolicyMonteCarlo(
        Scripted([(1, 3.0, True, False)], [(1, 3.0, True, False)]), target=[[1.0, 0.0]] * 3, estimator=estimator
    )
    actions = iter([0, 1])
    agent.explore = lambda row: next(actions)  # type: ignore[method-assign]
    agent.learn(episodes=1)
    assert agent.state_values[0] == pytest.approx(first)
    agent.learn(episodes=1)  # action 1: weight 0
    assert agent.state_values[0] == pytest.approx(second)
    assert agent.q[0].tolist() == [3.0, 3.0]  # a pair is given its action: nothing is left to weigh


def test_off_policy_control_learns_the_greedy_policy_from_random_behaviour() -> None:
    agent = OffPolicyMonteCarlo("FrozenLake-v1", env_arguments={"is_slippery": False}, discount=0.95, seed=1)
    agent.learn(episodes=4000)
    row, steps = 0, 0
    world: Any = agent.env.unwrapped
    model = world.P
    while row != 15 and steps < 20:
        row, steps = int(model[row][agent.predict(row)][0][1]), steps + 1
    assert (row, steps) == (15, 6)


# ------------------------------------------------------------------------------------------------ exploration


def test_greedy_takes_the_first_of_equals_or_any_of_them() -> None:
    assert greedy([1.0, 3.0, 3.0]) == 1
    rng = np.random.default_rng(0)
    drawn = [greedy([1.0, 3.0, 3.0], rng) for _ in range(400)]
    assert 120 < drawn.count(1) < 280
    assert drawn.count(0) == 0


def test_the_probabilities_are_those_that_actions_are_drawn_with() -> None:
    values, legal = [1.0, 2.0, 2.0, -np.inf], [0, 1, 2]
    expected = epsilon_greedy_probabilities(values, legal, 0.3)
    np.testing.assert_allclose(expected, [0.1, 0.45, 0.45, 0.0])
    rng = np.random.default_rng(0)
    drawn = np.bincount([epsilon_greedy(values, legal, 0.3, rng) for _ in range(20_000)], minlength=4) / 20_000
    np.testing.assert_allclose(drawn, expected, atol=0.015)


def test_softmax_does_not_overflow_and_leaves_illegal_actions_out() -> None:
    found = softmax_probabilities([1e4, 1e4 - 1.0, -np.inf], [0, 1], 1.0)
    np.testing.assert_allclose(found, [np.e / (1 + np.e), 1 / (1 + np.e), 0.0])
    agent = QLearning("reinlm/MaximizationBias-v0", temperature=0.5)
    assert {agent.explore(0) for _ in range(200)} == {0, 1}


def test_a_schedule_takes_exploration_down_over_the_budget() -> None:
    agent = QLearning("CliffWalking-v1", epsilon=0.5, schedule="linear")
    agent.begin(episodes=100)
    assert agent.exploration == 0.5
    agent.advance(50)
    assert agent.exploration == pytest.approx(0.5 * (0.01 + 0.99 * 0.5))


def test_two_ways_to_explore_are_refused() -> None:
    with pytest.raises(InputError, match="two ways to explore"):
        QLearning("CliffWalking-v1", epsilon=0.1, temperature=1.0)
    with pytest.raises(InputError, match="two kinds of return"):
        TD("CliffWalking-v1", n=2, smoothing=0.5)


def test_a_budget_of_steps_is_never_exceeded_and_counts_as_a_truncation() -> None:
    agent = QLearning("CliffWalking-v1", seed=0).learn(37)
    assert agent.steps == 37
    assert agent.learn(13).steps == 50


def test_observations_of_several_parts_become_one_row_each() -> None:
    agent = MonteCarlo("Blackjack-v1", env_arguments={"sab": True})
    assert agent.states == 32 * 11 * 2
    rows = {agent.encode((total, card, ace)) for total in range(32) for card in range(11) for ace in range(2)}
    assert rows == set(range(704))
    assert agent.encode((13, 2, 1)) == (13 * 11 + 2) * 2 + 1
