"""A bound by a Lagrange multiplier: how the multiplier moves, and what becomes of the reward."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reinlm.objectives import Lagrange, penalize


def d(values):
    return torch.tensor(values, dtype=torch.float64)


def test_vector_16_5():
    bound = Lagrange("cost", limit=0.25, multiplier=0.5, rate=0.1)
    moved = bound.advance(0.5, 0.4)
    assert moved == pytest.approx(0.515)
    assert penalize(d([1.0]), [d([0.4])], [moved]).tolist() == pytest.approx([0.5240924092], abs=1e-9)
    assert bound.advance(0.01, 0.1) == 0.0


def test_a_cost_that_was_not_given_counts_nothing_and_several_share_one_denominator():
    found = penalize(d([1.0, 2.0]), [d([math.nan, 1.0]), d([1.0, 1.0])], [0.5, 0.5])
    assert found.tolist() == pytest.approx([0.25, 0.5])
    assert penalize(d([1.0, math.nan]), [d([1.0, 1.0])], [0.0]).tolist()[0] == 1.0
    assert penalize(d([math.nan]), [d([1.0])], [1.0]).isnan().all()
    with pytest.raises(ValueError, match="zip"):
        penalize(d([1.0]), [d([1.0])], [0.5, 0.5])


def test_dual_ascent_finds_the_multiplier_at_which_the_bound_holds():
    """The best of (x - λ x²): x = 1 / (2 λ), and x² ≤ 0.25 needs λ = 1."""
    bound = Lagrange("x", limit=0.25, rate=0.5)
    multiplier = 0.5
    for _ in range(200):
        multiplier = bound.advance(multiplier, min(1.0 / (2.0 * max(multiplier, 1e-9)), 10.0) ** 2)
    assert multiplier == pytest.approx(1.0, abs=1e-6)


@given(st.floats(0, 1e3), st.floats(-1e3, 1e3))
def test_the_multiplier_is_never_negative_and_grows_exactly_where_the_bound_is_broken(multiplier, cost):
    moved = Lagrange("c", limit=1.0, rate=0.25).advance(multiplier, cost)
    assert moved >= 0.0
    assert (moved > multiplier) is (multiplier + 0.25 * (cost - 1.0) > multiplier)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"reward": "", "limit": 1.0}, "lagrange: name the reward that is bounded"),
        ({"reward": "c", "limit": math.inf}, "lagrange: the limit must be finite, not inf"),
        ({"reward": "c", "limit": 1.0, "multiplier": -0.1}, "lagrange: the multiplier must be at least 0"),
        ({"reward": "c", "limit": 1.0, "multiplier": math.inf}, "lagrange: the multiplier must be at least 0"),
        ({"reward": "c", "limit": 1.0, "rate": 0.0}, "lagrange: the rate must be more than 0"),
        ({"reward": "c", "limit": 1.0, "rate": math.inf}, "lagrange: the rate must be more than 0"),
    ],
)
def test_values_out_of_range_are_refused(values, told):
    with pytest.raises(ValueError, match=f"^{told}"):
        Lagrange(**values)
