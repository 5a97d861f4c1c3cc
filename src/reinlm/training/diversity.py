"""How much the sampled answers of a model differ: the figures of `diversity` in `reinlm eval`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean

from reinlm.objectives.diversity import answer_entropy, distinct_n, pairwise_similarity
from reinlm.records import ScoredGroup
from reinlm.rewards.builtin import answer_text

FIGURES = ("distinct_1", "distinct_2", "similarity", "answer_entropy")

_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """The words of a text, and each other visible character by itself; the same for models of different tokenizers.

    Example:
        >>> words("It's 3+4.")
        ['It', "'", 's', '3', '+', '4', '.']
    """
    return _WORD.findall(text)


def diversity_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """distinct_1 and distinct_2 over the words of all answers; similarity and answer_entropy (nats), means over prompts.

    Of a conversation the last message counts. Episodes that an error ended are left out, prompts with one answer are in no
    similarity, and a figure without anything to measure is absent.
    """
    texts = [
        [answer_text(rollout.completion) for rollout in group.group.rollouts if not rollout.failed] for group in groups
    ]
    rows = [[words(text) for text in row] for row in texts]
    found: dict[str, float | None] = {
        f"distinct_{n}": distinct_n([answer for row in rows for answer in row], n) for n in (1, 2)
    }
    found["similarity"] = _mean([pairwise_similarity(row) for row in rows])
    found["answer_entropy"] = _mean([answer_entropy(row) for row in texts if row])
    return {name: value for name, value in found.items() if value is not None}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
