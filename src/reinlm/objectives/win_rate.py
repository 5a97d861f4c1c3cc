"""Win rates: how often the answers of one model are better than those of another, by a score."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float


def both_orders(first: Float[Tensor, " pairs"], swapped: Float[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
    """The outcome of pairs that a judge saw in both orders: what it said where both agree, else a tie, ½; float64.

    The conservative rule of MT-bench (arXiv 2306.05685, 3.4): an answer wins where it is preferred in both orders.

    Args:
        first: 1, ½ or 0 for a win, a tie or a loss of our answer, which the judge saw first.
        swapped: the same where it saw our answer second.

    Raises ValueError for different numbers, and for another value.

    Example:
        >>> import torch
        >>> both_orders(torch.tensor([1.0, 1.0, 0.5, 0.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])).tolist()
        [1.0, 0.5, 0.5, 0.0]
    """
    if first.shape != swapped.shape:
        raise ValueError(f"{len(first)} judgements and {len(swapped)} of the other order: each pair has one of both")
    for given in (first, swapped):
        if bool(((given != 0.0) & (given != 0.5) & (given != 1.0)).any()):
            raise ValueError("a judgement is 1, 0.5 or 0")
    return torch.where(first == swapped, first.double(), 0.5)


def first_position(first: Float[Tensor, " pairs"], swapped: Float[Tensor, " pairs"]) -> float:
    """How often a judge prefers the answer that it sees first, over both orders, a tie counted half: ½ without such a bias.

        mean of (first + 1 - swapped) / 2

    Example:
        >>> import torch
        >>> first_position(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0]))
        0.75
    """
    return float((0.5 * (first.double() + 1.0 - swapped.double())).mean())


def outcomes(ours: Float[Tensor, " pairs"], theirs: Float[Tensor, " others"]) -> Float[Tensor, " pairs"]:
    """1 where our score is the higher one, ½ where both are equal (a tie), 0 where theirs is; float64.

    Their mean is the win rate with a tie counted half, P(ours > theirs) + ½ P(ours = theirs), as AlpacaEval counts
    (arXiv 2404.04475). Raises ValueError for different numbers of scores, and for a NaN, which is neither.

    Example:
        >>> import torch
        >>> outcomes(torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0.0, 0.0, 3.0])).tolist()
        [1.0, 0.5, 0.0]
    """
    if ours.shape != theirs.shape:
        raise ValueError(f"{len(ours)} scores cannot be compared with {len(theirs)}: each pair has one of both")
    if bool((ours.isnan() | theirs.isnan()).any()):
        raise ValueError("a score that is NaN is neither higher nor lower")
    return (ours > theirs).double() + 0.5 * (ours == theirs).double()
