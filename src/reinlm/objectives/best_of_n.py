"""Best of N: how far the choice of the best of N answers moves a policy."""

from __future__ import annotations

import math


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
