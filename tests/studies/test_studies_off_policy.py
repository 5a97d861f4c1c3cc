"""Which returns of another policy's steps mean what they say, with and without importance weights."""

from __future__ import annotations

import statistics

import numpy as np
import off_policy as study
import pytest
import torch
from walks import walk

from reinlm.classical import ValueIteration

pytestmark = pytest.mark.no_cover

BATCH = 60_000


@pytest.fixture(scope="module")
def model():
    return study.corridor()


@pytest.fixture(scope="module")
def windows(model):
    starts = torch.full((BATCH,), study.START)
    return walk(model, study.BEHAVIOUR, starts, study.N, torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def best():
    planner = ValueIteration(study.Corridor, discount=study.DISCOUNT).learn()
    return torch.tensor(planner.q).nan_to_num(neginf=0.0)


def judged(rule, windows, table, action=None):
    """Mean, its standard error and deviation of what a rule says of the start, where every learner has the same table."""
    found = rule(windows, table.expand(BATCH, *table.shape))
    found = found if action is None else found[windows.actions[0] == action]
    return float(found.mean()), float(found.std()) / len(found) ** 0.5, float(found.std())


def test_the_exact_values_are_those_of_a_computation_from_scratch():
    def solve(right):
        step = 0.8 * right + 0.2 * (1 - right)
        follow = step * np.eye(5, k=1) + (1 - step) * np.eye(5, k=-1)
        return np.linalg.solve(np.eye(5) - 0.95 * follow, [0, 0, 0, 0, step])[2]

    found = {s.name: (s.wanted, s.limit) for s in study.studies()}
    assert found["Q, one step"] == pytest.approx((solve(1.0), solve(1.0)), abs=1e-9)
    assert found["V, three steps"] == pytest.approx((solve(0.9), solve(0.2)), abs=1e-9)
    assert found["V, three steps, weighed"] == pytest.approx((solve(0.9), solve(0.9)), abs=1e-9)
    assert found["V, three steps, caps of 1"] == pytest.approx((solve(0.9), solve(2 / 3)), abs=1e-9)


@pytest.mark.parametrize("action", [0, 1])
def test_one_step_q_learning_asks_nothing_of_the_behaviour(windows, best, action):
    mean, error, _ = judged(study.plain(1), windows, best, action)
    assert mean == pytest.approx(float(best[study.START, action]), abs=4 * error)


@pytest.mark.parametrize("action", [0, 1])
def test_several_steps_of_another_policy_are_wrong_and_ratios_mend_them_at_the_price_of_variance(windows, best, action):
    exact = float(best[study.START, action])
    plain, _, narrow = judged(study.plain(3), windows, best, action)
    assert plain < exact - 0.15
    weighed, error, wide = judged(study.q_weighed, windows, best, action)
    assert weighed == pytest.approx(exact, abs=4 * error)
    assert wide > 1.5 * narrow


def test_values_of_states_need_the_ratio_even_for_one_step(model, windows):
    exact = model.evaluate(study.TARGET, study.DISCOUNT)
    plain, _, narrow = judged(study.plain(1), windows, exact)
    assert plain < float(exact[study.START]) - 0.05
    for n in (1, 3):
        weighed, error, wide = judged(study.v_weighed(n), windows, exact)
        assert weighed == pytest.approx(float(exact[study.START]), abs=4 * error)
        assert wide > narrow


def test_v_trace_with_caps_evaluates_the_policy_between(model, windows):
    between = model.evaluate(study.BETWEEN, study.DISCOUNT)
    mean, error, narrow = judged(study.v_weighed(3, 1.0), windows, between)
    assert mean == pytest.approx(float(between[study.START]), abs=4 * error)
    _, _, wide = judged(study.v_weighed(3), windows, between)
    assert 3 * narrow < wide


def test_what_is_learned_without_ratios_comes_to_another_value_than_what_is_learned_with_them():
    chosen = [s for s in study.studies() if s.name.startswith("Q")]
    one, plain, weighed = study.learn(chosen, updates=1_200, learners=30, seed=0)[-1].mean(-1).tolist()
    wrong, right = chosen[1].limit, chosen[1].wanted
    assert plain == pytest.approx(wrong, abs=0.05)
    assert wrong < right - 0.4
    assert min(one, weighed) > wrong + 0.25  # still on their way up to `right`


def test_the_librarys_q_learning_finds_the_best_value_while_any_action_is_drawn(best):
    found = [study.agent(seed, episodes=2_000) for seed in range(2)]
    assert statistics.fmean(found) == pytest.approx(float(best[study.START].max()), abs=0.03)
