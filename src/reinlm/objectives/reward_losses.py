"""The losses of reward models as pure functions: of pairs, rankings, ties and ratings.

Of a pair d = r_first - r_second is the difference of both scores, the better answer first; σ is the logistic function. Scores in
half precision are to be cast to float32 before. The loss of a ranking of two answers is that of the pair.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


def bradley_terry_loss(
    difference: Float[Tensor, " pairs"], margin: Tensor | float = 0.0, label_smoothing: float = 0.0
) -> Float[Tensor, " pairs"]:
    """-(1-ε) log σ(d - m) - ε log σ(m - d), least at d - m = log((1-ε)/ε). Bradley & Terry (1952); margin of Llama 2, 2307.09288.

    Args:
        difference: d [P].
        margin: m [P] or a number, by which the better answer shall win.
        label_smoothing: ε, the share of labels that are wrong, from 0 to below ½.
    """
    excess = difference - margin
    return -(1.0 - label_smoothing) * logsigmoid(excess) - label_smoothing * logsigmoid(-excess)


def centering_loss(first: Float[Tensor, " pairs"], second: Float[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
    """(r_first + r_second)²: ties the scores, of which comparisons fix only differences, to mean 0. arXiv 2312.09244."""
    return (first + second).square()


def log_davidson(
    difference: Float[Tensor, " pairs"], nu: float = 1.0
) -> tuple[Float[Tensor, " pairs"], Float[Tensor, " pairs"], Float[Tensor, " pairs"]]:
    """(log P(first), log P(second), log P(tie)) of the weights e^(d/2), e^(-d/2) and ν. Davidson (1970).

    ν = 1 ties with probability ⅓ at d = 0. DPO-D (arXiv 2409.17431) writes 2ν in place of ν.
    """
    weights = torch.stack([difference / 2.0, -difference / 2.0, torch.full_like(difference, math.log(nu))])
    first, second, tie = torch.log_softmax(weights, dim=0)
    return first, second, tie


def log_rao_kupper(
    difference: Float[Tensor, " pairs"], theta: float
) -> tuple[Float[Tensor, " pairs"], Float[Tensor, " pairs"], Float[Tensor, " pairs"]]:
    """(log P(first), log P(second), log P(tie)) with P(first) = σ(d - log θ). Rao & Kupper (1967).

    P(tie) = (θ²-1) e^d / ((e^d + θ)(θ e^d + 1)): ½ at d = 0 for θ = 3, and 0 for θ = 1, which is Bradley-Terry.
    Raises ValueError for θ below 1.
    """
    if not theta >= 1.0:
        raise ValueError(f"Rao and Kupper's theta is at least 1, not {theta}")
    threshold = math.log(theta)
    height = math.log(math.expm1(2.0 * threshold)) if theta > 1.0 else -math.inf
    shift = torch.full_like(difference, threshold)
    against = torch.logaddexp(difference, shift) + torch.logaddexp(difference + shift, torch.zeros_like(difference))
    return logsigmoid(difference - threshold), logsigmoid(-difference - threshold), height + difference - against


def rating_loss(scores: Float[Tensor, " answers"], ratings: Float[Tensor, " answers"]) -> Float[Tensor, " answers"]:
    """(score - rating)²; 0 where the rating is NaN, which stands for none. Regression, as HelpSteer (arXiv 2311.09528) does."""
    rated = ~ratings.isnan()
    return torch.where(rated, (scores - torch.where(rated, ratings, 0.0)).square(), 0.0)


def step_label_loss(logits: Float[Tensor, " steps"], labels: Bool[Tensor, " steps"]) -> Float[Tensor, " steps"]:
    """-log σ(logit) of a right step, -log σ(-logit) of a wrong one: process rewards, arXiv 2305.20050."""
    return -logsigmoid(torch.where(labels, logits, -logits))


# ---------------------------------------------------------------------------------------------------- rankings


class Comparisons(NamedTuple):
    """All pairs of answers of one unit: indices of the first and the second, and whether they tie; n(n-1)/2 of a unit of n."""

    first: Int[Tensor, " comparisons"]
    second: Int[Tensor, " comparisons"]
    tied: Bool[Tensor, " comparisons"]


def comparisons(unit: Int[Tensor, " answers"], rank: Int[Tensor, " answers"]) -> Comparisons:
    """Every pair of answers of one unit, the better one first.

    Args:
        unit: [S] the pair or ranking of each answer, ascending.
        rank: [S] the place in it, ascending within a unit; equal ones tie.

    Example:
        >>> comparisons(torch.tensor([0, 0, 0]), torch.tensor([0, 1, 1]))
        Comparisons(first=tensor([0, 1, 0]), second=tensor([1, 2, 2]), tied=tensor([False,  True, False]))
    """
    most = int(unit.bincount().max()) if len(unit) else 0
    first = [torch.nonzero(unit[lag:] == unit[: len(unit) - lag]).squeeze(-1) for lag in range(1, most)]
    nothing = unit.new_zeros(0)
    begins = torch.cat([nothing, *first])
    ends = torch.cat([nothing, *(begin + lag for lag, begin in enumerate(first, start=1))])
    return Comparisons(begins, ends, rank[begins] == rank[ends])


def mean_by_unit(values: Float[Tensor, " values"], unit: Int[Tensor, " values"], units: int) -> Float[Tensor, " units"]:
    """The mean of each unit's values [U]; 0 for a unit without any."""
    totals = values.new_zeros(units).index_add(0, unit, values)
    return totals / unit.bincount(minlength=units).clamp(min=1)


def plackett_luce_loss(
    scores: Float[Tensor, " answers"],
    unit: Int[Tensor, " answers"],
    rank: Int[Tensor, " answers"],
    top: int | None = None,
) -> Float[Tensor, " units"]:
    """-Σ_k [s_k - logsumexp of the scores of rank k and worse], over all but the worst. Plackett (1975), Luce (1959).

    The answers of the last rank are what remains, in no order. `top` = K takes the best K alone: K = 1 is the cross-entropy of
    the best answer. Answers that tie are each compared with all of their rank and worse (Breslow's approximation). DPO,
    arXiv 2305.18290 appendix A.

    Args:
        scores: [S], with a gradient.
        unit: [S] the ranking of each answer, from 0, ascending, without a gap.
        rank: [S] the place in it, from 0, ascending within a ranking; equal ones tie.
        top: K, at least 1; None for all.

    Returns:
        [U] a loss of each ranking.
    """
    units, most = (int(unit.max()) + 1, int(unit.bincount().max())) if len(unit) else (0, 1)
    place = torch.arange(len(unit), device=unit.device) - torch.searchsorted(unit, unit)
    table = scores.new_full((units, most), -torch.inf).index_put((unit, place), scores)
    ranks = rank.new_full((units, most), -1).index_put((unit, place), rank)
    last = ranks.amax(dim=1)
    counted = (rank < last[unit]) if top is None else (rank < last[unit]) & (rank < top)
    left = table[unit].masked_fill(ranks[unit] < rank[:, None], -torch.inf)  # of this rank and worse
    losses = torch.logsumexp(left, dim=1) - scores
    return scores.new_zeros(units).index_add(0, unit, torch.where(counted, losses, 0.0))
