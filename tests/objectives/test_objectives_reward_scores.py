"""Scores of ensembles, running moments and the population stability index, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reinlm.objectives.reward_scores import RunningMoments, ensemble_score, population_stability_index


def test_an_ensemble_s_score_is_its_mean_less_its_spread_times_the_penalty() -> None:
    outputs = torch.tensor([[[1.0, 2.0], [3.0, 0.0]]])  # members score 1 + 0.5 · 2 = 2 and 3
    weights = torch.tensor([1.0, 0.5])
    score, spread = ensemble_score(outputs, weights)
    assert (float(score), float(spread)) == (2.5, 0.5)
    score, _ = ensemble_score(outputs, weights, spread_penalty=2.0)
    assert float(score) == 1.5
    score, _ = ensemble_score(torch.tensor([[[math.inf], [0.0]]]), torch.ones(1))
    assert float(score) == math.inf  # the spread, which is NaN, is not subtracted


def test_one_member_has_no_spread() -> None:
    score, spread = ensemble_score(torch.tensor([[[0.7]], [[-1.0]]]), torch.ones(1), spread_penalty=3.0)
    assert score.tolist() == pytest.approx([0.7, -1.0])
    assert spread.tolist() == [0.0, 0.0]


def test_the_stability_index_of_shares_by_hand() -> None:
    """Half an observation more in each bin: 8 and 1 become shares 0.85 and 0.15."""
    expected = (0.85 - 0.5) * math.log(0.85 / 0.5) + (0.15 - 0.5) * math.log(0.15 / 0.5)
    found = population_stability_index(torch.tensor([8, 1]), torch.tensor([0.5, 0.5]))
    assert float(found) == pytest.approx(expected)
    # 1 and 6 become 1.5/8 and 6.5/8, against a quarter and three quarters
    expected = (0.1875 - 0.25) * math.log(0.1875 / 0.25) + (0.8125 - 0.75) * math.log(0.8125 / 0.75)
    found = population_stability_index(torch.tensor([1, 6]), torch.tensor([0.25, 0.75]))
    assert float(found) == pytest.approx(expected)


def test_the_stability_index_is_finite_for_an_empty_bin_and_0_for_equal_shares() -> None:
    assert 1.0 < float(population_stability_index(torch.tensor([0, 100]), torch.tensor([0.5, 0.5]))) < math.inf
    assert float(population_stability_index(torch.tensor([7, 7]), torch.tensor([0.5, 0.5]))) == pytest.approx(0.0)


@given(st.lists(st.lists(st.floats(-1e3, 1e3), max_size=6), max_size=6))
def test_moments_joined_part_by_part_are_those_of_all_values(parts: list[list[float]]) -> None:
    moments = RunningMoments()
    for part in parts:
        moments.add(torch.tensor(part, dtype=torch.float64))
    values = np.array([value for part in parts for value in part])
    assert moments.count == len(values)
    if len(values):
        assert moments.mean == pytest.approx(values.mean(), abs=1e-9)
        assert moments.squares == pytest.approx(((values - values.mean()) ** 2).sum(), abs=1e-6)


def test_normalised_values_have_the_mean_and_deviation_of_all_values_so_far_taken_out() -> None:
    moments = RunningMoments()
    assert moments.normalised(torch.tensor([4.0])).tolist() == [4.0]  # nothing is known yet
    moments.add(torch.tensor([1.0]))
    assert moments.deviation == 1.0  # one value has none
    moments.add(torch.tensor([3.0, 5.0]))
    expected = [(value - 3.0) / math.sqrt(8 / 3) for value in (1.0, 7.0)]
    assert moments.normalised(torch.tensor([1.0, 7.0])).tolist() == pytest.approx(expected)
