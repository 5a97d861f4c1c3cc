"""What λ does to bias and variance, and what a Monte Carlo return owes to the critic: nothing."""

from __future__ import annotations

from itertools import pairwise

import bias_variance as study
import numpy as np
import pytest

LAMBDAS = (0.0, 0.5, 0.8, 0.9, 0.95, 1.0)


@pytest.fixture(scope="module")
def walks():
    return study.episodes(4_000, seed=1)


def expected_bias(smoothing):
    """The λ-return solves g = r + γ P [(1 - λ) V + λ g], so its bias b solves b = P [(1 - λ) error + λ b], over five states."""
    follow = 0.5 * (np.eye(5, k=1) + np.eye(5, k=-1))
    error = (1 - smoothing) * follow @ np.array(study.ERROR[1:6])
    return float(np.linalg.solve(np.eye(5) - smoothing * follow, error)[2])


def test_the_exact_values_are_those_of_the_book():
    _, exact = study.world()
    assert exact[1:6].tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6], abs=1e-12)


def test_a_larger_lambda_trades_bias_for_variance(walks):
    found = study.measure(walks, 1.0, LAMBDAS, steps=())
    for smoothing, estimate in zip(LAMBDAS, found, strict=True):
        assert estimate.bias == pytest.approx(expected_bias(smoothing), abs=4 * estimate.standard_error)
    assert all(abs(later.bias) < abs(before.bias) for before, later in pairwise(found))
    assert all(later.variance > before.variance for before, later in pairwise(found))
    assert found[0].variance * 10 < found[-1].variance


def test_a_longer_n_trades_bias_for_variance_too(walks):
    found = study.measure(walks, 1.0, lambdas=(), steps=(1, 2, 4, 8, 16))
    assert all(abs(later.bias) < abs(before.bias) for before, later in pairwise(found))
    assert all(later.variance > before.variance for before, later in pairwise(found))


def test_a_monte_carlo_return_is_unbiased_whatever_the_critic_says(walks):
    _, exact = study.world()
    right, wrong = (study.lambda_estimate(walks, critic, 1.0) for critic in (exact, exact + 1_000.0))
    np.testing.assert_allclose(right, wrong, atol=1e-9)
    estimate = study.judge("", wrong, 0.5)
    assert abs(estimate.bias) < 4 * estimate.standard_error
    assert estimate.variance == pytest.approx(0.25, abs=0.01)  # 0 or 1, half of the time each


def test_one_step_carries_the_critics_error_and_varies_least(walks):
    found = study.measure(walks, 1.0, LAMBDAS)
    one = found[0]
    assert one.bias == pytest.approx((study.ERROR[2] + study.ERROR[4]) / 2, abs=4 * one.standard_error)
    assert all(one.variance < other.variance for other in found[1:] if other.name != "n = 1")


def test_the_best_lambda_hangs_on_how_wrong_the_critic_is(walks):
    best = []
    for scale in (0.0, 1.0, 4.0):
        found = study.measure(walks, scale, LAMBDAS, steps=())
        best.append(LAMBDAS[min(range(len(found)), key=lambda i: found[i].mse)])
    assert best == [0.0, 0.8, 1.0]
