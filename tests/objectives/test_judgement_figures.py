"""Figures of judged and chosen answers for whatever is drawn, against loops in float64 NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles_preferences as oracle
from reinlm.objectives import best_of, expected_best_of, majority_vote, pairwise_accuracy, reliability
from reinlm.objectives.diversity import answer_entropy, distinct_n, pairwise_similarity
from reinlm.objectives.intervals import (
    bootstrap_interval,
    clustered_mean_interval,
    difference_interval,
    wilson_interval,
)
from reinlm.objectives.reward_losses import rating_loss, step_label_loss
from reinlm.objectives.reward_scores import ensemble_score, population_stability_index
from reinlm.objectives.win_rate import outcomes

seeds = st.integers(0, 2**32 - 1)
scores_ = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=6)
texts = st.lists(st.text("abc", max_size=5), max_size=5)


@given(scores=scores_, seed=seeds, data=st.data())
def test_the_best_of_n_is_that_of_every_choice(scores: list[float], seed: int, data: st.DataObject) -> None:
    values = np.random.default_rng(seed).normal(size=len(scores)).tolist()
    n = data.draw(st.integers(1, len(scores)))
    assert expected_best_of(scores, values, n) == pytest.approx(oracle.mean_best(scores, values, n))
    assert best_of([None, *scores]) == 1 + scores.index(max(scores))


@given(answers=st.lists(st.sampled_from(["", "a", "b", None]), max_size=6))
def test_a_vote_is_won_by_what_is_said_most(answers: list[str | None]) -> None:
    assert majority_vote(answers) == oracle.most_said(answers)


@given(answers=texts, n=st.integers(1, 4))
def test_diversity_is_that_of_letters(answers: list[str], n: int) -> None:
    grams = [gram for text in answers for gram in oracle.grams(text, n)]
    assert distinct_n(answers, n) == (pytest.approx(len(np.unique(grams)) / len(grams)) if grams else None)
    pairs = [oracle.jaccard(a, b) for place, a in enumerate(answers) for b in answers[:place]]
    assert pairwise_similarity(answers) == (pytest.approx(np.mean(pairs)) if pairs else None)
    if answers:
        assert answer_entropy(answers) == pytest.approx(oracle.entropy(answers), abs=1e-15)


@given(ours=scores_, seed=seeds)
def test_wins_ties_and_losses_are_the_sign_of_the_difference(ours: list[float], seed: int) -> None:
    theirs = np.random.default_rng(seed).choice([-1.0, 0.0, 0.5, 2.0], len(ours))
    signs = np.sign(np.array(ours) - theirs)
    given_ = torch.tensor(ours), torch.tensor(theirs)
    assert outcomes(*given_).tolist() == ((1 + signs) / 2).tolist()
    assert float(pairwise_accuracy(*given_)) == pytest.approx(np.mean((1 + signs) / 2))
    assert float(pairwise_accuracy(*given_, tie=0.0)) == pytest.approx(np.mean(signs > 0))


@given(seed=seeds, count=st.integers(1, 9), bins=st.integers(1, 6), least=st.sampled_from([0.0, 0.5]))
def test_bins_hold_their_lower_ends(seed: int, count: int, bins: int, least: float) -> None:
    draw = np.random.default_rng(seed)
    predicted = least + (1.0 - least) * draw.integers(0, 17, count) / 16
    outcome, weight = draw.choice([0.0, 0.5, 1.0], count), draw.integers(0, 3, count).astype(np.float64)
    found = reliability(torch.tensor(predicted), torch.tensor(outcome), bins, least, torch.tensor(weight))
    place = [min(int((p - least) * bins / (1.0 - least)), bins - 1) for p in predicted]
    for b in range(bins):
        inside = [i for i in range(count) if place[i] == b and weight[i] > 0]
        assert float(found.count[b]) == sum(weight[i] for i in inside)
        for values, means in ((predicted, found.confidence), (outcome, found.accuracy)):
            mean = np.average(values[inside], weights=weight[inside]) if inside else math.nan
            assert float(means[b]) == pytest.approx(mean, nan_ok=True)


@given(seed=seeds, members=st.integers(1, 4), penalty=st.sampled_from([0.0, 0.7]))
def test_an_ensemble_is_the_mean_less_the_deviation(seed: int, members: int, penalty: float) -> None:
    draw = np.random.default_rng(seed)
    outputs, weights = draw.normal(size=(3, members, 2)), draw.normal(size=2)
    score, spread = ensemble_score(torch.tensor(outputs), torch.tensor(weights), penalty)
    each = [[sum(outputs[a, k] * weights) for k in range(members)] for a in range(3)]
    np.testing.assert_allclose(spread, np.std(each, axis=1), atol=1e-12)
    np.testing.assert_allclose(score, np.mean(each, axis=1) - penalty * np.std(each, axis=1), atol=1e-12)


@given(seed=seeds, bins=st.integers(1, 6))
def test_the_stability_index_is_a_divergence_both_ways(seed: int, bins: int) -> None:
    draw = np.random.default_rng(seed)
    counts, reference = draw.integers(0, 50, bins), draw.dirichlet(np.ones(bins)) + 1e-9
    found = float(population_stability_index(torch.tensor(counts), torch.tensor(reference)))
    assert found == pytest.approx(oracle.stability_index(counts, reference))


@given(seed=seeds, count=st.integers(1, 6))
def test_ratings_and_steps_cost_what_the_loop_says(seed: int, count: int) -> None:
    draw = np.random.default_rng(seed)
    scores, ratings = draw.normal(size=count) * 5, draw.choice([math.nan, 1.0, 4.0], count)
    labels = draw.integers(0, 2, count).astype(bool)
    expected = [0.0 if math.isnan(r) else (s - r) ** 2 for s, r in zip(scores, ratings, strict=True)]
    np.testing.assert_allclose(rating_loss(torch.tensor(scores), torch.tensor(ratings)), expected, atol=1e-12)
    expected = [oracle.softplus(-s if good else s) for s, good in zip(scores, labels, strict=True)]
    np.testing.assert_allclose(step_label_loss(torch.tensor(scores), torch.tensor(labels)), expected, atol=1e-12)


# ---------------------------------------------------------------------------------------------- intervals


@given(seed=seeds, clusters=st.integers(1, 6))
def test_wilsons_ends_are_found_by_bisection(seed: int, clusters: int) -> None:
    draw = np.random.default_rng(seed)
    count = draw.integers(1, 5, clusters).astype(np.float64)
    right = np.array([draw.integers(0, int(c) + 1) for c in count], np.float64)
    found = wilson_interval(torch.tensor(right), torch.tensor(count))
    assert found == pytest.approx(oracle.wilson_ends(right, count), abs=1e-9)


@given(seed=seeds, clusters=st.integers(2, 9), size=st.integers(1, 3))
def test_the_interval_of_a_mean_of_equal_clusters_is_that_of_their_means(seed: int, clusters: int, size: int) -> None:
    total = np.random.default_rng(seed).normal(size=clusters)
    found = clustered_mean_interval(torch.tensor(total), torch.full((clusters,), float(size)))
    mean, half = np.mean(total / size), oracle.Z * np.std(total / size, ddof=1) / math.sqrt(clusters)
    assert found == pytest.approx((mean - half, mean + half), abs=1e-9)


@given(seed=seeds, count=st.integers(1, 40), estimate=st.floats(-3, 3))
def test_the_bias_corrected_ends_are_quantiles_and_hold_the_estimate(seed: int, count: int, estimate: float) -> None:
    values = np.random.default_rng(seed).normal(size=count).round(1)
    found = bootstrap_interval(estimate, torch.tensor([*values, math.nan], dtype=torch.float64))
    assert found == pytest.approx(oracle.bias_corrected_ends(estimate, values), abs=1e-9)
    assert found[0] <= estimate <= found[1]


@given(seed=seeds)
def test_an_interval_of_a_difference_turns_round_with_it_and_adds_squares(seed: int) -> None:
    drawn = np.sort(np.random.default_rng(seed).random((2, 3)), axis=1)
    (low, p, high), (below, q, above) = drawn.tolist()
    found = difference_interval((p, (low, high)), (q, (below, above)))
    turned = difference_interval((q, (below, above)), (p, (low, high)))
    assert found == pytest.approx((-turned[1], -turned[0]))
    assert (p - q - found[0]) ** 2 == pytest.approx((p - low) ** 2 + (above - q) ** 2)
    assert (found[1] - (p - q)) ** 2 == pytest.approx((high - p) ** 2 + (q - below) ** 2)
