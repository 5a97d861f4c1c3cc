"""What is gained by choosing one of several answers: the best by a reward, or the one that most of them give."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reinlm.composition.filters import SUM
from reinlm.errors import InputError
from reinlm.objectives import best_of, best_of_n_kl, expected_best_of, majority_vote
from reinlm.records import ScoredGroup, total, unweighted
from reinlm.rewards import RewardSet
from reinlm.rewards.builtin import Math, answer_text


class Chosen(NamedTuple):
    """One of several answers."""

    place: int
    reward: float | None
    votes: int | None
    """Answers that say the same, itself among them; None where nothing is voted on."""


Verdicts = Sequence[Sequence[bool | None]]


@dataclass(frozen=True)
class Choosing:
    """How one of several answers is chosen.

    Example: by the reward named `model`, and by majority vote:
        Choosing(best_of="model", majority_vote=True)
    """

    best_of: str | None = None
    """The reward whose highest value chooses; "sum": the weighted sum of all; None: none does."""
    majority_vote: bool = False

    def check(self, rewards: RewardSet | None) -> None:
        """Raise InputError for a reward that there is not."""
        names = () if rewards is None else (*rewards.names, SUM)
        if self.best_of is not None and rewards is not None and self.best_of not in names:
            raise InputError(
                f"evaluation.best_of {self.best_of!r} names no reward of this run", hint=f"names: {', '.join(names)}"
            )

    def metrics(self, groups: Sequence[ScoredGroup], correct: Verdicts, rewards: RewardSet | None) -> dict[str, float]:
        """best_of@k and maj@k for k = 2, 4, … and for all answers of a prompt, with the bound of the KL of the latter's choice.

        Args:
            correct: for every group, whether each answer is right; None where that cannot be said, and it is left out.
        """
        found: dict[str, float] = {}
        if self.best_of is not None:
            found |= _best_of_metrics(groups, correct, self.best_of)
        if self.majority_vote:
            found |= _vote_metrics(groups, correct, (Math() if rewards is None else rewards.reads).extract)
        return found


def choose(group: ScoredGroup, size: int, rewards: RewardSet | None, *, vote: bool) -> list[Chosen]:
    """One of every `size` answers of a group: the best by its rewards, or with `vote` the first that says what most say.

    Where no answer has a reward, or none can be read, it is the first of them.
    """
    read = (Math() if rewards is None else rewards.reads).extract
    found = []
    for start in range(0, len(group.events), size):
        part = range(start, start + size)
        if vote:
            said = [read(answer_text(group.group.rollouts[place].completion)) for place in part]
            place = majority_vote(said)
            votes = 0 if place is None else said.count(said[place])
        else:
            place, votes = best_of([group.returns[place] for place in part]), None
        chosen = start + (place or 0)
        found.append(Chosen(chosen, group.returns[chosen], votes))
    return found


def _best_of_metrics(groups: Sequence[ScoredGroup], correct: Verdicts, name: str) -> dict[str, float]:
    rows = []
    for group, verdicts in zip(groups, correct, strict=True):
        scores = [total(events) if name == SUM else unweighted(events, name) for events in group.events]
        both = [(s, float(v)) for s, v in zip(scores, verdicts, strict=True) if s is not None and v is not None]
        if both:
            rows.append(both)
    if not rows:
        return {}
    counts = _counts(min(map(len, rows)))
    split = [([score for score, _ in row], [value for _, value in row]) for row in rows]
    metrics = {f"best_of@{k}": _mean([expected_best_of(*row, k) for row in split]) for k in counts}
    return metrics | ({"best_of_kl": best_of_n_kl(counts[-1])} if counts else {})


def _vote_metrics(
    groups: Sequence[ScoredGroup], correct: Verdicts, read: Callable[[str], Hashable | None]
) -> dict[str, float]:
    rows = []
    for group, verdicts in zip(groups, correct, strict=True):
        given = zip(group.group.rollouts, verdicts, strict=True)
        row = [(read(answer_text(rollout.completion)), verdict) for rollout, verdict in given if verdict is not None]
        if row:
            rows.append(row)
    counts = _counts(min(map(len, rows), default=0))
    return {f"maj@{k}": _mean([_voted_right(row, k) for row in rows]) for k in counts}


def _voted_right(row: Sequence[tuple[Hashable | None, bool]], k: int) -> float:
    """How often the vote of k answers is right, over as many disjoint runs of k as there are; no vote is not right."""
    parts = [row[start : start + k] for start in range(0, len(row) - k + 1, k)]
    chosen = [(part, majority_vote([answer for answer, _ in part])) for part in parts]
    return _mean([0.0 if place is None else float(part[place][1]) for part, place in chosen])


def _counts(most: int) -> list[int]:
    """2, 4, 8, … below `most`, and `most`."""
    powers = [2**power for power in range(1, most.bit_length()) if 2**power < most]
    return [*powers, most] if most > 1 else []


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
