"""The group of answers to one prompt as the baseline: no critic. Everything here is a constant to the policy loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reinlm.objectives.advantages import Advantage, Feedback
from reinlm.objectives.layout import Layout
from reinlm.objectives.registry import choice

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

EQUAL = 1e-12
"""Rewards of a group within this fraction of their size are equal: their rounding residue is no signal.

For tensors of fewer bits than float64: within four units in the last place."""


def group_center(
    rewards: Float[Tensor, " members"], group: Int[Tensor, " members"], groups: int
) -> Float[Tensor, " members"]:
    """A = R - mean of the group. Dr. GRPO, arXiv 2503.20783. NaN rewards are left out and get 0; equal rewards get exact 0."""
    return _group_deviation(rewards, group, groups)[0]


def group_standardize(
    rewards: Float[Tensor, " members"],
    group: Int[Tensor, " members"],
    groups: int,
    epsilon: float = 1e-6,
    bessel: bool = False,
) -> Float[Tensor, " members"]:
    """A = (R - mean) / (std + ε) within the group. GRPO, arXiv 2402.03300 §4.1.2.

    The population standard deviation, or with `bessel` the sample one. NaN rewards are left out of the statistics and get 0;
    a group of equal rewards, or of one, gets exact zeros.
    """
    deviation, count = _group_deviation(rewards, group, groups)
    squares = deviation.new_zeros(groups).index_add(0, group, deviation.square())
    variance = squares / (count - 1.0 if bessel else count).clamp(min=1.0)
    return torch.where(deviation == 0.0, 0.0, deviation / (variance.sqrt() + epsilon)[group])


def leave_one_out(
    rewards: Float[Tensor, " members"], group: Int[Tensor, " members"], groups: int
) -> Float[Tensor, " members"]:
    """A_i = R_i - mean of the others = G / (G - 1) · (R_i - mean). RLOO, arXiv 2402.14740.

    NaN rewards are left out and get 0; equal rewards, and a group of one, get exact 0.
    """
    deviation, count = _group_deviation(rewards, group, groups)
    return deviation * (count / (count - 1.0).clamp(min=1.0))[group]


def length_weighted_center(
    rewards: Float[Tensor, " members"],
    lengths: Int[Tensor, " members"],
    group: Int[Tensor, " members"],
    groups: int,
) -> Float[Tensor, " members"]:
    """A_i = R_i - Σ_j L_j R_j / Σ_j L_j over the group: the optimal baseline where a token's gradient has one size.

    OPO, arXiv 2505.23585. NaN rewards are left out and get 0; equal rewards, and a group without tokens, get exact 0.
    """
    deviation, _ = _group_deviation(rewards, group, groups)
    given = torch.where(rewards.isnan(), 0.0, lengths.to(rewards.dtype))
    total = deviation.new_zeros(groups).index_add(0, group, given)
    shift = deviation.new_zeros(groups).index_add(0, group, given * deviation) / total.clamp(min=1.0)
    flat = deviation.new_zeros(groups).index_add(0, group, deviation.abs()) == 0.0
    empty = total == 0.0
    return torch.where(rewards.isnan() | (flat | empty)[group], 0.0, deviation - shift[group])


def group_rank(
    rewards: Float[Tensor, " members"], group: Int[Tensor, " members"], groups: int
) -> Float[Tensor, " members"]:
    """A_i = (rank_i - (G + 1) / 2) / std(ranks): the place of each reward within its group, 1 for the lowest.

    Equal rewards share their mean rank; the deviation is the population one. Ranks depend on the order of the rewards, not
    on their size, so one outlier moves no other. NaN rewards are left out and get 0; a group of equal rewards, or of one,
    gets exact zeros.
    """
    given = torch.nonzero(~rewards.isnan()).flatten()
    given = given[rewards[given].argsort(stable=True)]
    given = given[group[given].argsort(stable=True)]
    ordered, owner = rewards[given], group[given]
    starts = torch.ones_like(given, dtype=torch.bool)
    starts[1:] = (owner[1:] != owner[:-1]) | ~equal(ordered[:-1], ordered[1:])
    run = starts.cumsum(0) - 1  # rewards that are equal are one run
    size = torch.bincount(run)
    middle = size.cumsum(0) - (size + 1) / 2.0  # places count on from group to group, which their means take off again
    ranks = torch.full_like(rewards, torch.nan).index_put((given,), middle.to(rewards.dtype)[run])
    return group_standardize(ranks, group, groups, epsilon=0.0)


def _group_deviation(
    rewards: Float[Tensor, " members"], group: Int[Tensor, " members"], groups: int
) -> tuple[Float[Tensor, " members"], Float[Tensor, " groups"]]:
    """R - mean, exactly 0 for equal or missing rewards; and how many rewards each group has."""
    given = ~rewards.isnan()
    known = torch.where(given, rewards, 0.0)
    count = known.new_zeros(groups).index_add(0, group, given.to(known.dtype))
    mean = known.new_zeros(groups).index_add(0, group, known) / count.clamp(min=1.0)
    infinite = known.new_full((groups,), torch.inf)
    lowest = infinite.scatter_reduce(0, group, torch.where(given, rewards, torch.inf), "amin")
    highest = (-infinite).scatter_reduce(0, group, torch.where(given, rewards, -torch.inf), "amax")
    return torch.where(given & ~equal(lowest, highest)[group], known - mean[group], 0.0), count


def equal(lowest: Float[Tensor, " *shape"], highest: Float[Tensor, " *shape"]) -> Bool[Tensor, " *shape"]:
    """Whether the two ends of a range are no further apart than rounding explains."""
    tolerance = max(EQUAL, 4.0 * torch.finfo(highest.dtype).eps)
    return highest - lowest <= tolerance * torch.maximum(lowest.abs(), highest.abs())


def process_advantages(
    normalized: Float[Tensor, " steps"], step_tokens: Int[Tensor, " steps"], layout: Layout
) -> Float[Tensor, " tokens"]:
    """A_t = Σ of the normalised rewards of the steps that end at or after t, within the episode. arXiv 2402.03300 §4.1.3."""
    landed = normalized.new_zeros(layout.tokens).index_add(0, step_tokens, normalized)
    padded = layout.pad(landed, "episode")
    return layout.unpad(padded.flip(0).cumsum(0).flip(0), "episode")


@choice("advantage", "group_standardize")
@dataclass(frozen=True)
class GroupStandardize(Advantage):
    """z-scores of the outcome rewards within the group, and of the process rewards where there are any.

    GRPO, arXiv 2402.03300 §4.1. Process rewards are normalised with mean and deviation of all step rewards of their group,
    and a token's advantage is the sum over the steps that end at or after it; with both kinds the two advantages add.
    """

    epsilon: float = 1e-6
    """Added to the deviation of the group."""
    bessel: bool = False
    """Divide the variance by n - 1 in place of n."""
    needs = frozenset({"group"})

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        def normalize(rewards: Tensor, group: Tensor, groups: int) -> Tensor:
            return group_standardize(rewards, group, groups, self.epsilon, self.bessel)

        return _group_advantages(feedback, normalize)


@choice("advantage", "group_center")
@dataclass(frozen=True)
class GroupCenter(Advantage):
    """R - mean of the group, undivided: no answer counts more for standing in a group that mostly agrees. arXiv 2503.20783."""

    needs = frozenset({"group"})

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        return _group_advantages(feedback, group_center)


@choice("advantage", "leave_one_out")
@dataclass(frozen=True)
class LeaveOneOut(Advantage):
    """R - mean of the other answers of the group: an unbiased baseline. RLOO, arXiv 2402.14740."""

    needs = frozenset({"group"})

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        return _group_advantages(feedback, leave_one_out)


@choice("advantage", "group_rank")
@dataclass(frozen=True)
class GroupRank(Advantage):
    """The rank of the outcome reward within the group, standardised. Outcome rewards alone: raises ValueError for others."""

    needs = frozenset({"group"})

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        outcome_only(feedback, "a rank")
        return _group_advantages(feedback, group_rank)


@choice("advantage", "gdpo")
@dataclass(frozen=True)
class GDPO(Advantage):
    """Every reward function standardised within the group by itself, then summed by weight, then whitened over the batch.

        A_i = whiten( Σ_k weight_k · (R_{k,i} - mean_g(R_k)) / (std_g(R_k) + ε) )

    GDPO, arXiv 2601.05242: a z-score of the sum gives groups of (1, 0) and (2, 0) the same advantage, this does not. The
    batch has one number for each episode with a reward and a token. Needs `Feedback.named_rewards`; outcome rewards alone.
    """

    epsilon: float = 1e-6
    """Added to the deviation of the group."""
    bessel: bool = False
    """Divide the variance by n - 1 in place of n."""
    needs = frozenset({"group", "named_rewards"})
    reads_rewards = False

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        outcome_only(feedback, "gdpo")
        layout, total = feedback.layout, torch.zeros_like(feedback.effective_rewards)
        if feedback.effective_named_rewards is None:
            raise ValueError("gdpo standardises each reward function by itself: Feedback.named_rewards is missing")
        for name, rewards in feedback.effective_named_rewards.items():
            scores = group_standardize(rewards, layout.group_of_episode, layout.groups, self.epsilon, self.bessel)
            total = total + feedback.reward_weights[name] * scores
        scored = ~feedback.effective_rewards.isnan() & (layout.count("episode") > 0)
        return layout.expand(total.new_zeros(total.shape).masked_scatter(scored, whiten(total[scored])), "episode")


@choice("advantage", "length_weighted")
@dataclass(frozen=True)
class LengthWeighted(Advantage):
    """R - the length-weighted mean of the group. OPO, arXiv 2505.23585. Outcome rewards alone: raises ValueError for others."""

    needs = frozenset({"group"})

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        outcome_only(feedback, "a length-weighted baseline")
        layout = feedback.layout
        advantages = length_weighted_center(
            feedback.effective_rewards, layout.count("episode"), layout.group_of_episode, layout.groups
        )
        return layout.expand(advantages, "episode")


@choice("advantage", "greedy_baseline")
@dataclass(frozen=True)
class GreedyBaseline(Advantage):
    """R - the reward of the policy's greedy answer to the same prompt. ReMax, arXiv 2310.10505.

    Costs one more answer a prompt. Equal rewards, and a prompt whose greedy answer got no reward, get exact 0. Outcome
    rewards alone: raises ValueError for others, or where `Feedback.baseline_rewards` is missing.
    """

    needs = frozenset({"greedy"})

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        outcome_only(feedback, "a greedy baseline")
        if feedback.baseline_rewards is None:
            raise ValueError("a greedy baseline needs the rewards of the greedy answers: Feedback.baseline_rewards")
        layout = feedback.layout
        baseline = feedback.baseline_rewards[layout.group_of_episode]
        difference = feedback.effective_rewards - baseline
        same = equal(
            torch.minimum(feedback.effective_rewards, baseline), torch.maximum(feedback.effective_rewards, baseline)
        )
        return layout.expand(torch.where(same | difference.isnan(), 0.0, difference), "episode")


def _check_epsilon(epsilon: float) -> None:
    if not 0.0 <= epsilon < float("inf"):
        raise ValueError(f"epsilon must be at least 0 and finite, not {epsilon}")


def whiten(x: Float[Tensor, " items"], shift_mean: bool = True, bessel: bool = False) -> Float[Tensor, " items"]:
    """(x - μ) / sqrt(var + 1e-8); with `shift_mean=False` μ is added back, as for reward whitening.

    The population variance, or with `bessel` the sample one. Equal items, a single one among them, are only centred: exact 0.
    """
    if not x.numel() or bool(equal(*x.aminmax())):
        return torch.zeros_like(x) if shift_mean else x
    mean = x.mean()
    whitened = (x - mean) * torch.rsqrt(x.var(correction=int(bessel)) + 1e-8)
    return whitened if shift_mean else whitened + mean


def outcome_only(feedback: Feedback, what: str) -> None:
    """Raise ValueError where there are process rewards, which `what` does not know."""
    if feedback.effective_step_rewards is not None:
        raise ValueError(f"{what} compares outcome rewards, and there are step rewards; take group_standardize")


def _group_advantages(
    feedback: Feedback, normalize: Callable[[Tensor, Tensor, int], Tensor]
) -> Float[Tensor, " tokens"]:
    layout = feedback.layout
    outcome = normalize(feedback.effective_rewards, layout.group_of_episode, layout.groups)
    advantages = layout.expand(outcome, "episode")
    if feedback.effective_step_rewards is None or feedback.effective_step_tokens is None:
        return advantages
    group = layout.index("group")[feedback.effective_step_tokens]
    normalized = normalize(feedback.effective_step_rewards, group, layout.groups)
    return advantages + process_advantages(normalized, feedback.effective_step_tokens, layout)
