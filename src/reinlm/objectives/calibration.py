"""How well scores and probabilities tell better answers from others: accuracy, AUC, Brier score, calibration error.

Plain tensors without gradient. Predictions are probabilities from 0 to 1; outcomes are 0 or 1, or between them where a judgement
is a tie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def pairwise_accuracy(
    better: Float[Tensor, " pairs"], worse: Float[Tensor, " pairs"], tie: float = 0.5
) -> Float[Tensor, ""]:
    """The share of pairs in which the better answer has the higher score, in [0, 1]; NaN without a pair.

    Args:
        better: scores of the answers that were judged better, in any unit.
        tie: what a pair with equal scores counts: ½ as in `auc`, 0 as in TRL.
    """
    return ((better > worse).double() + tie * (better == worse).double()).mean()


def auc(
    positive: Float[Tensor, " positives"],
    negative: Float[Tensor, " negatives"],
    positive_weight: Float[Tensor, "... positives"] | None = None,
    negative_weight: Float[Tensor, "... negatives"] | None = None,
) -> Float[Tensor, "..."]:
    """P(s⁺ > s⁻) + ½ P(s⁺ = s⁻) over all pairs of a positive and a negative score: the area under the ROC curve, in [0, 1].

    Args:
        positive_weight: how often each positive score counts, also of several samples at once; None: once.
        negative_weight: the same of the negative ones.

    NaN where one of both is empty, or weighs nothing. O(n log n).
    """
    plus = torch.ones_like(positive, dtype=torch.float64) if positive_weight is None else positive_weight.double()
    minus = torch.ones_like(negative, dtype=torch.float64) if negative_weight is None else negative_weight.double()
    ordered, order = negative.sort()
    reached = torch.nn.functional.pad(minus[..., order].cumsum(-1), (1, 0))
    below = torch.searchsorted(ordered, positive.contiguous(), right=False)
    upto = torch.searchsorted(ordered, positive.contiguous(), right=True)
    share = (reached[..., below] + reached[..., upto]) / (2 * reached[..., -1:])
    return (plus * share).sum(-1) / plus.sum(-1)


def brier_score(
    predicted: Float[Tensor, " cases"],
    outcome: Float[Tensor, " cases"],
    weight: Float[Tensor, "... cases"] | None = None,
) -> Float[Tensor, "..."]:
    """Mean (p - y)²; 0 is best, ¼ that of ½ everywhere, NaN without a case. Brier (1950).

    `weight` says how often each case counts, also of several samples at once; None: once.
    """
    squares = (predicted.double() - outcome.double()).square()
    return squares.mean() if weight is None else (weight.double() * squares).sum(-1) / weight.double().sum(-1)


@dataclass(frozen=True)
class Reliability:
    """Predictions in bins of equal width, for a reliability plot."""

    count: Float[Tensor, "... bins"]
    """[B] cases of each."""
    confidence: Float[Tensor, "... bins"]
    """[B] mean prediction; NaN for an empty bin."""
    accuracy: Float[Tensor, "... bins"]
    """[B] mean outcome; NaN for an empty bin."""

    @property
    def error(self) -> Float[Tensor, "..."]:
        """Σ_b n_b/n |confidence_b - accuracy_b|: the expected calibration error (ECE), arXiv 1706.04599."""
        gaps = (self.confidence - self.accuracy).abs().nan_to_num(0.0)
        return (self.count * gaps).sum(-1) / self.count.sum(-1)


def bin_of(predicted: Float[Tensor, " cases"], bins: int = 10, least: float = 0.0) -> Int[Tensor, " cases"]:
    """The bin of each prediction: bins of equal width from `least` to 1 hold their lower ends, and the last one 1 as well.

    Ends are numbers of the predictions' precision: 0.6, however it is rounded, is the lower end of a bin from 0.6.

    Raises ValueError for less than one bin, and for a prediction that is not from `least` to 1.
    """
    if bins < 1:
        raise ValueError(f"at least one bin is needed, not {bins}")
    if bool(((predicted < least) | (predicted > 1.0) | predicted.isnan()).any()):
        raise ValueError(f"a predicted probability is from {least:g} to 1")
    inner = torch.arange(1, bins, dtype=torch.float64, device=predicted.device)
    ends = ((least * (bins - inner) + inner) / bins).to(predicted.dtype)
    return torch.bucketize(predicted.contiguous(), ends, right=True)


def reliability(
    predicted: Float[Tensor, " cases"],
    outcome: Float[Tensor, " cases"],
    bins: int = 10,
    least: float = 0.0,
    weight: Float[Tensor, "... cases"] | None = None,
) -> Reliability:
    """Predictions and outcomes by the bins of `bin_of`.

    Args:
        least: the lower end of the first bin: ½ for the confidence σ(|d|) in the order of two scores.
        weight: how often each case counts, also of several samples at once; None: once.

    Raises ValueError as `bin_of` does.
    """
    where = torch.nn.functional.one_hot(bin_of(predicted, bins, least), bins).double()
    weights = torch.ones_like(predicted, dtype=torch.float64) if weight is None else weight.double()
    count = weights @ where
    return Reliability(
        count, (weights * predicted.double()) @ where / count, (weights * outcome.double()) @ where / count
    )


def calibration_error(
    predicted: Float[Tensor, " cases"],
    outcome: Float[Tensor, " cases"],
    bins: int = 10,
    least: float = 0.0,
    weight: Float[Tensor, "... cases"] | None = None,
) -> Float[Tensor, "..."]:
    """The expected calibration error (ECE) of `reliability`: Σ_b n_b/n |confidence_b - accuracy_b|; NaN without a case."""
    return reliability(predicted, outcome, bins, least, weight).error
