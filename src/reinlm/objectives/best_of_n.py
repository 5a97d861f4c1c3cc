"""Choosing one of several answers: the best by a score, or the one that most others agree with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence


def best_of_n_kl(n: int) -> float:
    """log N - (N - 1) / N: the KL divergence, in nats per answer, of the best of N answers from the policy that gives them.

    An upper bound; it is reached where no two answers earn the same (arXiv 2401.01879). Raises ValueError for N below 1.

    Example:
        >>> round(best_of_n_kl(4), 4)
        0.6363
    """
    if n < 1:
        raise ValueError(f"best of {n} answers: there must be at least one")
    return math.log(n) - (n - 1) / n


def best_of(scores: Sequence[float | None]) -> int | None:
    """The place of the highest score, of equal ones the first; None where no answer has one.

    Example:
        >>> best_of([0.5, None, 2.0, 2.0])
        2
    """
    known = [place for place, score in enumerate(scores) if score is not None]
    return max(known, key=lambda place: (scores[place], -place)) if known else None


def expected_best_of(scores: Sequence[float], values: Sequence[float], n: int) -> float:
    """The mean value of the answer with the highest score, over all choices of n of the answers without replacement.

        Σ_i  C(N - i, n - 1) / C(N, n) · value_i        i = 1 … N in descending order of score, equal ones as given

    The unbiased estimate of what best-of-n gains from N ≥ n answers; with the values as their own scores, 0 or 1, it is pass@n.
    Source of best-of-n: arXiv 2112.09332. Raises ValueError for n outside 1 … N, and lists of different lengths.

    Example:
        >>> expected_best_of([0.1, 0.9], [1.0, 0.0], 1), expected_best_of([0.1, 0.9], [1.0, 0.0], 2)
        (0.5, 0.0)
    """
    count = len(scores)
    if not 1 <= n <= count or len(values) != count:
        raise ValueError(f"best of {n} among {count} scores and {len(values)} values")
    order = sorted(range(count), key=lambda place: (-scores[place], place))
    chances = [math.comb(count - rank, n - 1) / math.comb(count, n) for rank in range(1, count + 1)]
    return math.fsum(chance * values[place] for chance, place in zip(chances, order, strict=True))


def majority_vote(answers: Sequence[Hashable | None]) -> int | None:
    """The place of the first answer that says what most of them say; of equally frequent ones the first; None without a vote.

    Self-consistency, Wang et al., arXiv 2203.11171. An answer of None, such as one that cannot be read, does not vote.

    Example:
        >>> majority_vote(["7", None, "8", "8"])
        2
    """
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return None
    most = max(votes.values())
    return next(place for place, answer in enumerate(answers) if answer is not None and votes[answer] == most)
