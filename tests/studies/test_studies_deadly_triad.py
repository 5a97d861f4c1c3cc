"""Features, bootstrapping and off-policy data diverge together; without any one of them the values come to 0."""

from __future__ import annotations

import deadly_triad as study
import numpy as np
import pytest

FOREVER = 10_000_000


@pytest.fixture(scope="module")
def variants():
    return {variant.name: variant for variant in study.variants()}


def test_the_update_is_that_of_the_book(variants):
    """I + α Φᵀ D (γ P_π - I) Φ, from scratch; the target leads to the seventh state."""
    features = np.zeros((7, 8))
    features[range(6), range(6)], features[:6, 7], features[6, 6:] = 2.0, 1.0, [1.0, 2.0]
    follow = np.zeros((7, 7))
    follow[:, 6] = 1.0
    matrix = np.eye(8) + 0.01 / 7 * features.T @ (0.99 * follow - np.eye(7)) @ features
    np.testing.assert_allclose(variants["all three"].matrix, matrix, atol=1e-9)
    assert variants["all three"].start.tolist() == [1, 1, 1, 1, 1, 1, 10, 1]


def test_all_three_together_diverge(variants):
    triad = variants["all three"]
    assert triad.growth() == pytest.approx(1.002393, abs=1e-6)
    drift = np.linalg.eigvals(triad.matrix.numpy() - np.eye(8)) / study.STEP_SIZE
    assert drift.real.max() > 0.1  # so that a smaller step size diverges too, only later
    assert triad.error(1_000) > 100 * triad.error(0)
    assert float(triad.after(1_000).norm()) == pytest.approx(436.9, abs=0.1)


@pytest.mark.parametrize(
    "name",
    [
        "a table instead of features",
        "no bootstrapping (λ = 1)",
        "the target's own data",
        "the behaviour's own values",
    ],
)
def test_without_any_one_of_them_the_values_come_to_zero(variants, name):
    assert variants[name].growth() <= 1.0 + 1e-9
    assert variants[name].error(FOREVER) < 1e-6
    assert variants[name].error(0) > 5


def test_longer_returns_diverge_more_slowly_and_then_not_at_all():
    growth = [
        study.Variant("", study.FEATURES, study.START, study.many_steps(study.FEATURES, smoothing)).growth()
        for smoothing in (0.0, 0.5, 0.9, 0.95)
    ]
    assert growth[0] == pytest.approx(1.002393, abs=1e-6)
    assert growth[0] > growth[1] > growth[2] > 1.0001
    assert growth[3] <= 1.0 + 1e-9


def test_single_sampled_steps_diverge_and_converge_alike():
    triad = study.sampled(study.FEATURES, study.START, study.TARGET, steps=600, seeds=5)
    assert float(triad[-1].min()) > 5 * float(triad[0].max())
    table = study.sampled(study.TABLE, study.FEATURES @ study.START, study.TARGET, steps=600, seeds=5)
    assert float(table.max()) < 7**0.5 * 12 + 1e-6  # no value leaves the range of the first ones
    mine = study.sampled(study.FEATURES, study.START, study.BEHAVIOUR, steps=600, seeds=5)
    assert float(mine[-1].max()) < float(mine[0].min())
