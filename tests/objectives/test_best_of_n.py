"""Best of N: the bound of its KL, and a policy of three answers worked out by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from reinlm.objectives import best_of_n_kl


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
