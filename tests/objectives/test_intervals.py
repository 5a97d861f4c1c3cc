"""Intervals over clusters: published examples, numbers by hand, and figures of weighted cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from reinlm.objectives.calibration import auc, bin_of, brier_score, calibration_error, reliability
from reinlm.objectives.intervals import (
    bootstrap_counts,
    bootstrap_interval,
    clustered_mean_interval,
    difference_interval,
    wilson_interval,
)


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def share(right: int, total: int) -> tuple[float, tuple[float, float]]:
    cases = torch.cat([torch.ones(right), torch.zeros(total - right)])
    return right / total, wilson_interval(cases, torch.ones(total))


def test_the_difference_of_two_shares_is_newcombes_published_example() -> None:
    low, high = difference_interval(share(56, 70), share(48, 80))  # Newcombe 1998, table II, case (a), method 10
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339)


def test_wilsons_interval_of_a_share_and_of_clusters() -> None:
    low, high = share(81, 263)[1]  # Newcombe 1998 (Stat. Med. 17: 857), table I, method 3
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    # ten prompts of four cases each, in which all cases are alike, say as much as ten cases
    assert wilson_interval(numbers(*[4.0] * 8, 0.0, 0.0), numbers(*[4.0] * 10)) == pytest.approx(
        share(8, 10)[1], abs=0.02
    )
    assert wilson_interval(numbers(3.0), numbers(3.0)) == pytest.approx(share(1, 1)[1])
    with pytest.raises(ValueError, match=r"^a share of no cases has no interval$"):
        wilson_interval(numbers(), numbers())


@pytest.mark.parametrize(
    ("right", "count", "p", "n"),
    [
        ([4.0, 0.0, 2.0, 3.0], [4.0, 4.0, 4.0, 4.0], 9 / 16, 5.4),  # variance 8.75 / 16² · 4/3, of 16 cases
        ([3.0, 2.0, 0.0], [3.0, 4.0, 1.0], 5 / 8, 320 / 61),  # residuals 9/8, -4/8, -5/8: 122/64 / 8² · 3/2
        ([2.0, 1.0], [2.0, 2.0], 3 / 4, 3.0),  # residuals ±½: ½ / 4² · 2
        ([1.0, 1.0], [2.0, 2.0], 1 / 2, 4.0),  # clusters do not differ: at most the number of cases
        ([3.0, 0.0], [3.0, 3.0], 1 / 2, 2.0),  # variance 4.5 / 6² · 2 says 1: at least the number of clusters
        ([1.0], [2.0], 1 / 2, 1.0),  # one cluster shows no variance
        ([2.0, 2.0, 5.0], [2.0, 2.0, 5.0], 1.0, 3.0),  # neither do cases that are all alike
        ([0.0, 0.0, 0.0], [2.0, 2.0, 5.0], 0.0, 3.0),
    ],
)
def test_wilsons_interval_counts_as_many_cases_as_the_clusters_show(
    right: list[float], count: list[float], p: float, n: float
) -> None:
    """Its ends θ are what z = 1.96 standard errors of θ itself are away from p: n (p - θ)² = z² θ (1 - θ)."""
    low, high = wilson_interval(numbers(*right), numbers(*count))
    for end in (low, high):
        assert n * (p - end) ** 2 == pytest.approx(3.8414588206941236 * end * (1.0 - end), abs=1e-12)
    assert (low == 0.0, high == 1.0) == (p == 0.0, p == 1.0)
    assert low <= p <= high
    assert low < high


def test_a_share_of_none_or_of_all_ends_there_without_rounding() -> None:
    for clusters in range(1, 30):
        ones, nothing = torch.ones(clusters), torch.zeros(clusters)
        assert wilson_interval(ones, ones)[1] == 1.0
        assert wilson_interval(nothing, ones)[0] == 0.0


def test_the_interval_of_a_mean_is_that_of_independent_clusters() -> None:
    half = 1.959963984540054 * 1.0 / math.sqrt(3)
    assert clustered_mean_interval(numbers(1.0, 2.0, 3.0), numbers(1.0, 1.0, 1.0)) == pytest.approx(
        (2.0 - half, 2.0 + half)
    )
    # the same three values, each twice in its cluster: no more is known
    assert clustered_mean_interval(numbers(2.0, 4.0, 6.0), numbers(2.0, 2.0, 2.0)) == pytest.approx(
        (2.0 - half, 2.0 + half)
    )
    assert clustered_mean_interval(numbers(5.0), numbers(2.0)) == (2.5, 2.5)
    with pytest.raises(ValueError, match=r"^a mean of no cases has no interval$"):
        clustered_mean_interval(numbers(), numbers())
    # two clusters, 1 and 3: Σ (total - mean)² = 2, and √(2/1 · 2) / 2 = 1
    assert clustered_mean_interval(numbers(1.0, 3.0), numbers(1.0, 1.0)) == pytest.approx(
        (2.0 - 1.959963984540054, 2.0 + 1.959963984540054)
    )


def test_bootstrap_samples_hold_as_many_clusters_as_there_are() -> None:
    counts = bootstrap_counts(7, 200, seed=3)
    assert counts.dtype == torch.float64
    assert counts.sum(1).tolist() == [7.0] * 200
    assert torch.equal(counts, bootstrap_counts(7, 200, seed=3))
    assert not torch.equal(counts, bootstrap_counts(7, 200, seed=4))
    assert counts.mean() == pytest.approx(1.0)
    assert counts.max() > 2


def test_a_figure_without_bias_has_the_plain_percentiles_as_its_interval() -> None:
    values = torch.arange(1001, dtype=torch.float64)
    assert bootstrap_interval(500.0, values) == pytest.approx((25.0, 975.0), abs=1e-6)


def test_a_figure_whose_samples_lean_to_one_side_lies_in_its_interval() -> None:
    values = torch.linspace(0.04, 0.10, 1001, dtype=torch.float64)
    low, high = bootstrap_interval(0.041, values)  # plain percentiles begin at 0.0415
    assert low < 0.041 < high < 0.0985
    # all samples lie above the estimate: the share below counts as 0.025, and the upper end is their 2.5 % quantile
    assert bootstrap_interval(0.03, values) == pytest.approx((0.03, 0.0415))
    assert bootstrap_interval(0.2, values) == pytest.approx((0.0985, 0.2))
    assert all(math.isnan(end) for end in bootstrap_interval(0.5, numbers(math.nan)))


def test_figures_of_weighted_cases_are_those_of_cases_that_are_repeated() -> None:
    draw = np.random.default_rng(0)
    predicted, outcome = torch.tensor(draw.random(12)), torch.tensor(draw.choice([0.0, 0.5, 1.0], 12))
    weight = torch.tensor(draw.integers(0, 3, (4, 12)), dtype=torch.float64)
    again = [row.long() for row in weight]
    for figure in (calibration_error, brier_score):
        found = figure(predicted, outcome, weight=weight)
        expected = [float(figure(predicted.repeat_interleave(n), outcome.repeat_interleave(n))) for n in again]
        assert found.tolist() == pytest.approx(expected)
        assert float(figure(predicted, outcome, weight=weight[0])) == pytest.approx(expected[0])
    plus, minus = torch.tensor([0.1, 0.5, 0.5, 0.9, 0.3, 0.2]), torch.tensor([0.5, 0.4, 0.1, 0.3, 0.9, 0.2])
    area = auc(plus, minus, weight[:, :6], weight[:, 6:])
    expected = [float(auc(plus.repeat_interleave(n[:6]), minus.repeat_interleave(n[6:]))) for n in again]
    assert area.tolist() == pytest.approx(expected)


def test_bins_from_one_half_hold_the_confidence_in_an_order() -> None:
    predicted = numbers(0.5, 0.549, 0.551, 0.999, 1.0)
    assert bin_of(predicted, 10, 0.5).tolist() == [0, 0, 1, 9, 9]
    found = reliability(predicted, numbers(0.5, 1.0, 0.0, 1.0, 1.0), 10, 0.5)
    assert found.count.tolist() == [2.0, 1.0, *[0.0] * 7, 2.0]
    assert found.accuracy[0] == pytest.approx(0.75)
    assert found.confidence[0] == pytest.approx(0.5245)
    assert float(found.error) == pytest.approx((2 * 0.2255 + 0.551 + 2 * 0.0005) / 5)
    with pytest.raises(ValueError, match=r"^a predicted probability is from 0.5 to 1"):
        bin_of(numbers(0.4), 10, 0.5)
