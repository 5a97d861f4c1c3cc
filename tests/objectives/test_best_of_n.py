"""Best of N and majority vote: the bound of the KL, all subsets of a few answers, and a policy worked out by hand."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import pytest

from reinlm.objectives import best_of, best_of_n_kl, expected_best_of, majority_vote


def test_6_the_bound():
    found = [best_of_n_kl(n) for n in (1, 2, 4, 16)]
    assert found == pytest.approx([0.0, 0.1931471806, 0.6362943611, 1.8350887222], abs=1e-10)
    with pytest.raises(ValueError, match="best of 0 answers: there must be at least one"):
        best_of_n_kl(0)


def test_6_three_answers_with_atoms_stay_below_it():
    policy, best = [0.5, 0.3, 0.2], [0.25, 0.39, 0.36]  # rewards 0, 1, 2 and N = 2: F^N - F_<^N
    below = [0.0, 0.5, 0.8, 1.0]
    assert [b**2 - a**2 for a, b in pairwise(below)] == pytest.approx(best)
    kl = sum(q * math.log(q / p) for p, q in zip(policy, best, strict=True))
    assert kl == pytest.approx(0.1406384674, abs=1e-10)
    assert kl <= best_of_n_kl(2)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_the_estimate_is_that_of_all_subsets(n: int) -> None:
    scores, values = [0.3, 0.9, 0.3, -1.0, 0.5], [1.0, 0.0, 2.0, 5.0, 1.5]
    subsets = list(combinations(range(5), n))
    chosen = [values[max(part, key=lambda i: (scores[i], -i))] for part in subsets]
    assert expected_best_of(scores, values, n) == pytest.approx(sum(chosen) / len(chosen))


def test_with_its_own_values_it_is_pass_at_n() -> None:
    values = [1.0] * 3 + [0.0] * 7
    found = [expected_best_of(values, values, n) for n in (1, 2, 5)]
    assert found == pytest.approx([0.3, 0.5333333333, 0.9166666667])
    for bad in (0, 11):
        with pytest.raises(ValueError, match=f"^best of {bad} among 10 scores and 10 values$"):
            expected_best_of(values, values, bad)
    with pytest.raises(ValueError, match=r"^best of 1 among 2 scores and 1 values$"):
        expected_best_of([1.0, 2.0], [1.0], 1)


def test_the_first_of_equals_is_chosen() -> None:
    assert best_of([None, 1.0, 2.0, 2.0]) == 2
    assert best_of([None, None]) is None
    assert majority_vote(["a", "b", "b", "a", None]) == 0
    assert majority_vote([None, "b"]) == 1
    assert majority_vote(["a", None, None, "b", "c", "b"]) == 3
    assert majority_vote([None]) is None
