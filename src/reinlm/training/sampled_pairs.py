"""Pairs of sampled answers by their rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from reinlm.batches import TokenBatch, token_batch
from reinlm.composition import shaped
from reinlm.composition.shapers import MissingEnd
from reinlm.errors import InputError
from reinlm.objectives.groups import EQUAL
from reinlm.records import RolloutGroup, ScoredGroup, total
from reinlm.training.judged_step import Items


@dataclass(frozen=True)
class PairRule:
    """Which two answers to a prompt are a pair: the one with the higher reward is chosen, the other one rejected.

    Sources: online DPO, arXiv 2402.04792 (two answers, judged); best against worst of several, arXiv 2401.12086; all pairs of
    answers that differ, arXiv 2404.19733.

    Example: of rewards 0.5, 1 and 0 the pair (1, 2):
        PairRule().pairs([0.5, 1.0, 0.0])
    """

    choose: Literal["best_worst", "all"] = "best_worst"
    min_margin: float = 0.0
    """Pairs whose rewards differ by less are left out; equal rewards always are."""
    missing_end_penalty: float | None = None
    """Subtracted from the reward of a truncated answer; None: nothing is."""

    def rewards(self, group: ScoredGroup) -> list[float | None]:
        """What each answer is compared by; None for one without a reward, of a failed episode, or without a token."""
        if self.missing_end_penalty is not None:
            group = shaped(group, [MissingEnd(self.missing_end_penalty)], 0)
        added = group.shaping or [()] * len(group.events)
        return [
            None if earned is None or rollout.failed or not rollout.length else earned + (total(events) or 0.0)
            for rollout, earned, events in zip(group.group.rollouts, group.returns, added, strict=True)
        ]

    def pairs(self, rewards: Sequence[float | None]) -> list[tuple[int, int]]:
        """(chosen, rejected) by their places; empty where all tie. Of equal rewards the first one counts."""
        known = [
            (place, reward) for place, reward in enumerate(rewards) if reward is not None and math.isfinite(reward)
        ]
        if len(known) < 2:
            return []
        least = max(self.min_margin, EQUAL * max(abs(reward) for _, reward in known))
        if self.choose == "best_worst":
            tried = [(max(known, key=lambda one: one[1]), min(known, key=lambda one: one[1]))]
        else:
            tried = [(one, other) for one in known for other in known]
        return [(i, j) for (i, a), (j, b) in tried if a - b >= least and a > b]

    def __call__(self, group: ScoredGroup) -> list[tuple[int, int]]:
        """The pairs of a prompt."""
        return self.pairs(self.rewards(group))


def paired_batch(groups: Sequence[ScoredGroup], rule: PairRule) -> tuple[TokenBatch, Items]:
    """The answers that stand in a pair, those to one prompt as a group, and the pairs; each prompt has the same weight.

    The margin of a pair is the difference of its rewards. Log-probabilities are those at temperature 1, whatever the answers
    were sampled at: the model's own, as for given pairs.

    Raises InputError for an answer in several contexts.
    """
    used, first, second, weight, margin = [], [], [], [], []
    start = 0
    for group in groups:
        pairs, rewards = rule(group), rule.rewards(group)
        places = sorted({place for pair in pairs for place in pair})
        number = {place: start + index for index, place in enumerate(places)}
        for chosen, rejected in pairs:
            first.append(number[chosen])
            second.append(number[rejected])
            weight.append(1.0 / (len(pairs) * len(groups)))
            margin.append(_known(rewards[chosen]) - _known(rewards[rejected]))
        used.append(_only(group, places))
        start += len(places)
    batch = replace(token_batch(used), temperature=None, columns={})
    items = Items(
        torch.tensor(first),
        torch.tensor(second),
        torch.tensor(weight, dtype=torch.float64),
        torch.tensor(margin, dtype=torch.float64),
        None,
    )
    return batch, items


def _known(reward: float | None) -> float:
    assert reward is not None
    return reward


def _only(group: ScoredGroup, places: Sequence[int]) -> ScoredGroup:
    """The group with these of its answers."""
    rollouts = tuple(group.group.rollouts[place] for place in places)
    for rollout in rollouts:
        if len(rollout.segments) != 1:
            raise InputError(
                f"{group.group.task.id}: an answer stands in {len(rollout.segments)} contexts, as the chat template rewrites "
                "earlier turns, and dpo compares answers of one",
                hint="take a chat template that only appends, or reinlm rl",
            )
    return ScoredGroup(RolloutGroup(group.group.task, rollouts), tuple(group.events[place] for place in places))
