"""Dynamic programming against exact values: fractions, linear systems of the test's own, and the book's figures."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from reinlm.classical import PolicyIteration, ValueIteration, evaluate
from reinlm.classical.tabular import blackjack, dynamic_programming
from reinlm.classical.tabular import model as tabular_model
from reinlm.classical.tabular.model import model_of
from reinlm.classical.worlds import ShortCorridor
from reinlm.errors import InputError

pytestmark = pytest.mark.no_cover

PLANNERS = [PolicyIteration, ValueIteration]


def plan(kind: type, env: str, **settings: float) -> PolicyIteration:
    agent = kind(env, **settings)
    agent.begin()
    agent.advance(1)
    return agent


@pytest.mark.parametrize("kind", PLANNERS)
@pytest.mark.parametrize(
    ("env", "discount", "value"),
    [
        ("FrozenLake-v1", 1.0, 14 / 17),
        ("CliffWalking-v1", 1.0, -13.0),
        ("Taxi-v4", 1.0, 7.93),
        ("reinlm/Gridworld4x4-v0", 1.0, -2.0),
    ],
)
def test_the_value_of_the_start_is_exact(kind: type, env: str, discount: float, value: float) -> None:
    agent = plan(kind, env, discount=discount)
    assert agent.start_value() == pytest.approx(value, abs=1e-6)
    exact = agent.model.evaluate(agent.best, discount)  # and the policy found is worth it, γ = 1 or not
    assert float(agent.model.start @ exact) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("kind", PLANNERS)
def test_the_grid_of_example_4_1_takes_as_many_steps_as_the_nearest_corner_is_away(kind: type) -> None:
    agent = plan(kind, "reinlm/Gridworld4x4-v0")
    row, column = np.divmod(np.arange(16), 4)
    distance = np.minimum(row + column, 6 - row - column)
    np.testing.assert_allclose(agent.v.numpy(), -distance, atol=1e-9)


def test_the_random_policy_of_example_4_1_has_the_books_values() -> None:
    model = model_of(gym.make("reinlm/Gridworld4x4-v0"))
    assert model is not None
    expected = [0, -14, -20, -22, -14, -18, -20, -20, -20, -20, -18, -14, -22, -20, -14, 0]
    np.testing.assert_allclose(model.evaluate(model.uniform(), 1.0).numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("kind", PLANNERS)
def test_the_grid_of_example_3_8_earns_ten_every_fifth_step(kind: type) -> None:
    """v(A) = 10 / (1 - γ⁵), B = 5 + γ³ v(…); and every other value by the Bellman equation of this test's own."""
    agent = plan(kind, "reinlm/Gridworld5x5-v0", discount=0.9)
    v = agent.v.numpy()
    assert v[1] == pytest.approx(10 / (1 - 0.9**5), abs=1e-9)
    np.testing.assert_allclose(v[:5].round(1), [22.0, 24.4, 22.0, 19.4, 17.5])
    for state in range(25):
        row, column = divmod(state, 5)
        options = []
        for down, right in ((0, -1), (1, 0), (0, 1), (-1, 0)):
            inside = 0 <= row + down < 5 and 0 <= column + right < 5
            if state in (1, 3):
                options.append({1: 10 + 0.9 * v[21], 3: 5 + 0.9 * v[13]}[state])
            else:
                options.append(0.9 * v[(row + down) * 5 + column + right] if inside else -1 + 0.9 * v[state])
        assert v[state] == pytest.approx(max(options), abs=1e-9)


def test_the_random_policy_of_example_3_5_has_the_books_values() -> None:
    model = model_of(gym.make("reinlm/Gridworld5x5-v0"))
    assert model is not None
    found = model.evaluate(model.uniform(), 0.9).numpy().reshape(5, 5).round(1)
    np.testing.assert_array_equal(found[0], [3.3, 8.8, 4.4, 5.3, 1.5])
    np.testing.assert_array_equal(found[4], [-1.9, -1.3, -1.2, -1.4, -2.0])


@pytest.mark.parametrize("kind", PLANNERS)
def test_blackjack_by_the_books_rules_loses_little(kind: type) -> None:
    agent = kind("Blackjack-v1", env_arguments={"sab": True})
    agent.begin()
    agent.advance(1)
    assert agent.start_value() == pytest.approx(-0.0431, abs=5e-5)
    sticks = {(total, card) for total in range(12, 22) for card in range(1, 11) if agent.predict((total, card, 0)) == 0}
    below_17 = {(total, card) for total, card in sticks if total < 17}
    expected = {(total, card) for total in range(13, 17) for card in range(2, 7)} | {(12, 4), (12, 5), (12, 6)}
    assert below_17 == expected  # figure 5.2: stick on 13 against 2 to 6, on 12 against 4 to 6


@pytest.mark.parametrize(("rules", "hands"), [({"sab": True}, 10_000), ({"natural": True}, 40_000), ({}, 10_000)])
def test_the_blackjack_model_agrees_with_the_game_itself(rules: dict[str, Any], hands: int) -> None:
    """Stick on 18 or more; the standard error of the mean is 0.005 for 40,000 hands, where 1.5 for a natural adds 0.02."""
    env = gym.make("Blackjack-v1", **rules)
    model = model_of(env)
    assert model is not None
    policy = torch.zeros(704, 2, dtype=torch.float64)
    for row in range(704):
        policy[row, int(row // 22 < 18)] = 1.0
    exact = float(model.start @ model.evaluate(policy, 1.0))
    found = evaluate(lambda seen: int(seen[0] < 18), "Blackjack-v1", hands, seed=0, **rules)
    assert found.mean_return == pytest.approx(exact, abs=4 * found.std_return / hands**0.5)


def test_the_dealers_scores_are_a_distribution() -> None:
    for card in range(1, 11):
        scores = blackjack._dealer(card, card == 1)
        assert sum(scores.values()) == pytest.approx(1.0, abs=1e-12)
        assert set(scores) <= {0, 17, 18, 19, 20, 21}
    outcomes, start = blackjack.table(natural=False, sab=True)
    assert math.fsum(start) == pytest.approx(1.0, abs=1e-12)
    assert all(
        math.fsum(o[0] for o in ways) == pytest.approx(1.0) for row in outcomes.values() for ways in row.values()
    )


def test_a_policy_that_never_ends_has_no_value_without_discount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabular_model, "IMPROPER", 2_000)
    model = model_of(gym.make("CliffWalking-v1"))
    assert model is not None
    left = torch.zeros(48, 4, dtype=torch.float64)
    left[:, 3] = 1.0
    with pytest.raises(InputError, match="never ends from some states"):
        model.evaluate(left, 1.0)
    assert float(model.evaluate(left, 0.9)[36]) == pytest.approx(-10.0)  # -1 a step, for ever


def test_a_policy_that_never_ends_and_earns_nothing_is_worth_nothing() -> None:
    model = model_of(gym.make("FrozenLake-v1", is_slippery=False))
    assert model is not None
    left = torch.zeros(16, 4, dtype=torch.float64)
    left[:, 0] = 1.0
    np.testing.assert_array_equal(model.evaluate(left, 1.0).numpy(), np.zeros(16))


def test_equal_actions_share_the_choice_so_that_no_policy_walks_in_circles() -> None:
    agent = plan(ValueIteration, "FrozenLake-v1")
    assert int((agent.best[0] > 0).sum()) >= 1
    single = torch.nn.functional.one_hot(agent.best.argmax(-1), 4).to(torch.float64)
    assert float(agent.model.start @ agent.model.evaluate(single, 1.0)) <= 14 / 17 + 1e-9


def test_planners_say_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic_programming, "IMPROPER", 2_000)
    with pytest.raises(InputError, match=r"policy_iteration needs a model, and .*Corridor.* has none"):
        PolicyIteration(ShortCorridor())
    with pytest.raises(InputError, match="takes no steps"):
        ValueIteration("FrozenLake-v1").learn(100)
    with pytest.raises(InputError, match=r"do not converge with discount=1\.0"):
        plan(ValueIteration, "reinlm/Gridworld5x5-v0", discount=1.0)


def test_a_marked_cell_without_a_best_action_shows_its_mark_alone() -> None:
    from reinlm.classical.pictures import Picture

    shown = Picture(np.array([[0.5, 0.25, 0.0]]), [["·", "←", "·"]], [["S", "", "G"]]).text()
    assert shown.splitlines()[0].split() == ["S", "←", "G"]
