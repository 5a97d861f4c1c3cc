"""What on-policy and off-policy learners earn on a cliff, against the exact best of any policy that explores."""

from __future__ import annotations

import statistics

import cliff as study
import pytest
import torch

pytestmark = pytest.mark.no_cover


@pytest.fixture(scope="module")
def runs():
    return {name: [study.learn(name, seed, 500) for seed in range(2)] for name in study.AGENTS}


def start_value(epsilon):
    model = study.cliff()
    return float(model.start @ study.soft_optimum(model, epsilon))


def test_the_soft_optimum_is_the_value_of_a_policy_and_no_soft_improvement_betters_it():
    model = study.cliff()
    values = study.soft_optimum(model, study.EPSILON)
    action_values = model.action_values(values, 1.0)
    assert study.soft_value(model, action_values, study.EPSILON) == pytest.approx(start_value(0.1), abs=1e-9)
    for action in range(4):  # leaning towards any one action in any one state is no better
        leaning = torch.full((48, 4), study.EPSILON / 4, dtype=torch.float64)
        leaning[:, action] += 1.0 - study.EPSILON
        assert bool(((leaning * action_values).sum(-1) <= values + 1e-9).all())
    assert start_value(0.1) == pytest.approx(-20.7077, abs=1e-4)


def test_without_exploration_the_shortest_path_is_best_and_with_it_far_from_that():
    assert start_value(0.0) == -13.0
    assert study.shortest_path_value(study.cliff(), 0.0) == -13.0
    assert study.shortest_path_value(study.cliff(), study.EPSILON) == pytest.approx(-50.80, abs=0.01)


def test_q_learning_walks_along_the_edge_and_sarsa_keeps_its_distance(runs):
    assert [(len(run.path) - 1, run.distance) for run in runs["Q-learning"]] == [(13, 1)] * 2
    assert all(run.distance >= 2 and run.path[-1] == 47 for run in runs["SARSA"] + runs["expected SARSA"])


def test_sarsa_earns_more_than_q_learning_while_exploring(runs):
    online = {name: statistics.fmean(run.online for run in found) for name, found in runs.items()}
    assert min(online["SARSA"], online["expected SARSA"]) > online["Q-learning"] + 5
    exact = {name: statistics.fmean(run.soft_value for run in found) for name, found in runs.items()}
    assert min(exact["SARSA"], exact["expected SARSA"]) > exact["Q-learning"] + 15


def test_q_learning_earns_what_exploring_around_the_shortest_path_is_worth(runs):
    shortest = study.shortest_path_value(study.cliff(), study.EPSILON)
    assert all(run.soft_value == pytest.approx(shortest, abs=1.5) for run in runs["Q-learning"])


def test_expected_sarsa_at_step_size_one_comes_to_the_soft_optimum(runs):
    for run in runs["expected SARSA"]:
        assert run.soft_value == pytest.approx(start_value(0.1), abs=0.25)


def test_what_is_learned_off_policy_is_better_once_exploration_ends(runs):
    assert all(len(run.path) > 14 for run in runs["SARSA"])
    assert all(len(run.path) == 14 for run in runs["Q-learning"])
