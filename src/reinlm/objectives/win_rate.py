"""Win rates: how often the answers of one model are better than those of another, by a score."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float


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
