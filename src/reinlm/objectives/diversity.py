"""Diversity of sampled answers: distinct n-grams, similarity of answers to one prompt, entropy of what is answered."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

Tokens = Sequence[Hashable]
"""An answer as tokens or words."""


def distinct_n(answers: Sequence[Tokens], n: int) -> float | None:
    """Distinct n-grams of all answers over all their n-grams, in (0, 1]; None where no answer has n tokens.

        |∪_i G_n(y_i)| / Σ_i max(0, |y_i| - n + 1)      G_n(y) the set of n-grams of y

    Distinct-n of Li et al., arXiv 1510.03055, which for n > 1 divides by the number of tokens; over n-grams, as most
    implementations count, 1 means that none repeats. It falls with the amount of text: compare equal numbers of answers.
    Raises ValueError for n below 1.

    Example:
        >>> distinct_n([["a", "b"], ["a", "c"]], 1), distinct_n([["a", "b"], ["a", "c"]], 2)
        (0.75, 1.0)
    """
    if n < 1:
        raise ValueError(f"an n-gram of {n} tokens: there must be at least one")
    grams = [gram for answer in answers for gram in _grams(answer, n)]
    return len(set(grams)) / len(grams) if grams else None


def pairwise_similarity(answers: Sequence[Tokens]) -> float | None:
    """Mean over all pairs of answers of the Jaccard index of their words and pairs of words, in [0, 1]; None for fewer than two.

        2 / (K (K - 1)) · Σ_{i<j} |G(y_i) ∩ G(y_j)| / |G(y_i) ∪ G(y_j)|      G(y) the set of 1-grams and 2-grams of y

    Two empty answers are equal (1), an empty one has nothing in common with another (0). Jaccard index of shingles:
    Broder 1997, "On the resemblance and containment of documents".

    Example:
        >>> pairwise_similarity([["a", "b"], ["a", "c"]])
        0.2
    """
    sets = [{*_grams(answer, 1), *_grams(answer, 2)} for answer in answers]
    values = [len(a & b) / len(a | b) if a | b else 1.0 for a, b in itertools.combinations(sets, 2)]
    return math.fsum(values) / len(values) if values else None


def answer_entropy(answers: Sequence[Hashable]) -> float:
    """Empirical entropy of the answers to one prompt in nats: 0 where all are equal, log K where K answers all differ.

        -Σ_a (c_a / K) log (c_a / K)        c_a how many of the K answers are a

    The plug-in estimate, which for few answers is below the entropy of the model's distribution (Miller 1955): compare equal
    numbers of answers. Raises ValueError without an answer.

    Example:
        >>> round(answer_entropy(["4", "4", "5", "6"]), 4)
        1.0397
    """
    if not answers:
        raise ValueError("the entropy of no answers: there must be at least one")
    shares = [count / len(answers) for count in Counter(answers).values()]
    return math.fsum(share * math.log(1.0 / share) for share in shares)


def _grams(tokens: Tokens, n: int) -> Iterator[tuple[Hashable, ...]]:
    return (tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))
