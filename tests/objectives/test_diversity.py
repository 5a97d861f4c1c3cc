"""Diversity of answers, by hand: distinct n-grams, Jaccard similarity of pairs, entropy of answers."""

from __future__ import annotations

import math

import pytest

from reinlm.objectives.diversity import answer_entropy, distinct_n, pairwise_similarity

ANSWERS = [["a", "b", "a"], ["a", "b"], ["c"], []]
"""1-grams a b a | a b | c: 3 of 6 differ; 2-grams ab ba | ab: 2 of 3."""


def test_distinct_n_counts_over_all_answers() -> None:
    assert distinct_n(ANSWERS, 1) == 3 / 6
    assert distinct_n(ANSWERS, 2) == 2 / 3
    assert distinct_n(ANSWERS, 3) == 1.0
    assert distinct_n(ANSWERS, 4) is None
    assert distinct_n([[]], 1) is None
    with pytest.raises(ValueError, match=r"^an n-gram of 0 tokens: there must be at least one$"):
        distinct_n(ANSWERS, 0)


def test_similarity_is_the_mean_over_pairs() -> None:
    """{a, b, ab, ba} and {a, b, ab} share 3 of 4; neither shares anything with {c}, and none of the three with {}."""
    assert pairwise_similarity(ANSWERS[:2]) == 3 / 4
    assert pairwise_similarity(ANSWERS[:3]) == (3 / 4 + 0 + 0) / 3
    assert pairwise_similarity(ANSWERS) == (3 / 4) / 6
    assert pairwise_similarity([["a", "b"], ["b", "a"]]) == 2 / 4


def test_similarity_of_empty_answers_and_of_one() -> None:
    assert pairwise_similarity([[], []]) == 1.0
    assert pairwise_similarity([[], ["a"]]) == 0.0
    assert pairwise_similarity([["a"]]) is None
    assert pairwise_similarity([]) is None


def test_entropy_is_that_of_the_shares() -> None:
    """Shares 1/2, 1/4, 1/4: 1/2 log 2 + 1/2 log 4 = 1.5 log 2."""
    assert answer_entropy(["4", "4", "5", ""]) == pytest.approx(1.5 * math.log(2))
    assert answer_entropy(["4", "4"]) == 0.0
    assert answer_entropy(["1", "2", "3"]) == pytest.approx(math.log(3))
    with pytest.raises(ValueError, match=r"^the entropy of no answers: there must be at least one$"):
        answer_entropy([])
