"""Rejection sampling as an advantage: accepted answers have advantage 1, and the others are not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reinlm.objectives.advantages import Advantage, Feedback
from reinlm.objectives.groups import outcome_only
from reinlm.objectives.registry import choice

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


def best_of_group(
    rewards: Float[Tensor, " members"], group: Int[Tensor, " members"], count: int
) -> Bool[Tensor, " members"]:
    """Whether each member is among the `count` highest rewards of its group; of equal rewards the first members.

    RAFT, arXiv 2304.06767, for count = 1. NaN rewards are never among them.
    """
    order = (-rewards).argsort(stable=True)  # NaN is last, also after -inf
    order = order[group[order].argsort(stable=True)]
    starts = torch.ones_like(order, dtype=torch.bool)
    starts[1:] = group[order][1:] != group[order][:-1]
    place = torch.arange(len(order), device=order.device)
    first = torch.where(starts, place, 0).cummax(0).values
    return torch.zeros_like(starts).index_put((order,), place - first < count) & ~rewards.isnan()


class _Accepted(Advantage):
    """Advantage 1 for the answers that `_accepts`, and no loss of the others."""

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        outcome_only(feedback, "rejection sampling")
        return feedback.layout.expand(self.trained(feedback).to(feedback.effective_rewards.dtype), "episode")


@choice("advantage", "accept_above")
@dataclass(frozen=True)
class AcceptAbove(_Accepted):
    """1 for every answer whose reward is more than `above`; all other answers are in no loss and in no token count.

    RAFT with rewards of right and wrong, arXiv 2304.06767 and 2504.11343. A prompt without such an answer is not trained on.
    Outcome rewards alone: raises ValueError for others.
    """

    above: float = 0.5
    """Of the weighted sum of rewards."""

    def __post_init__(self) -> None:
        if not abs(self.above) < float("inf"):
            raise ValueError(f"accept_above: above must be finite, not {self.above}")

    def trained(self, feedback: Feedback) -> Bool[Tensor, " episodes"]:
        return feedback.effective_rewards > self.above


@choice("advantage", "accept_best")
@dataclass(frozen=True)
class AcceptBest(_Accepted):
    """1 for the `count` highest rewards of each group, of equal ones the first; all other answers are in no loss.

    RAFT, arXiv 2304.06767 §3: it reads the order of the rewards alone, such as those of a reward model. Outcome rewards alone:
    raises ValueError for others.
    """

    count: int = 1
    """Answers that are accepted of each group."""
    needs = frozenset({"group"})

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"accept_best: count is at least 1, not {self.count}")

    def trained(self, feedback: Feedback) -> Bool[Tensor, " episodes"]:
        return best_of_group(feedback.effective_rewards, feedback.layout.group_of_episode, self.count)
