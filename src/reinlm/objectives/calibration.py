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
    from jaxtyping import Float


def pairwise_accuracy(
    better: Float[Tensor, " pairs"], worse: Float[Tensor, " pairs"], tie: float = 0.5
) -> Float[Tensor, ""]:
    """The share of pairs in which the better answer has the higher score; equal scores count `tie` (TRL: 0)."""
    return ((better > worse).double() + tie * (better == worse).double()).mean()


def auc(positive: Float[Tensor, " positives"], negative: Float[Tensor, " negatives"]) -> Float[Tensor, ""]:
    """P(s⁺ > s⁻) + ½ P(s⁺ = s⁻) over all pairs of a positive and a negative score: the area under the ROC curve.

    NaN where one of both is empty. O(n log n).
    """
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive.contiguous(), right=False)
    upto = torch.searchsorted(ordered, positive.contiguous(), right=True)
    return (below + upto).double().mean() / (2 * len(negative)) if len(negative) else torch.tensor(torch.nan).double()


def brier_score(predicted: Float[Tensor, " cases"], outcome: Float[Tensor, " cases"]) -> Float[Tensor, ""]:
    """Mean (p - y)²; 0 is best, ¼ that of ½ everywhere. Brier (1950)."""
    return (predicted.double() - outcome.double()).square().mean()


@dataclass(frozen=True)
class Reliability:
    """Predictions in bins of equal width, for a reliability plot."""

    count: Float[Tensor, " bins"]
    """[B] cases of each."""
    confidence: Float[Tensor, " bins"]
    """[B] mean prediction; NaN for an empty bin."""
    accuracy: Float[Tensor, " bins"]
    """[B] mean outcome; NaN for an empty bin."""

    @property
    def error(self) -> Float[Tensor, ""]:
        """Σ_b n_b/n |confidence_b - accuracy_b|: the expected calibration error (ECE), arXiv 1706.04599."""
        gaps = (self.confidence - self.accuracy).abs().nan_to_num(0.0)
        return (self.count * gaps).sum() / self.count.sum()


def reliability(predicted: Float[Tensor, " cases"], outcome: Float[Tensor, " cases"], bins: int = 10) -> Reliability:
    """Predictions by bin: bin b holds those from b/bins up to (b+1)/bins, and the last one 1 as well.

    Raises ValueError for less than one bin, and for a prediction that is not from 0 to 1.
    """
    if bins < 1:
        raise ValueError(f"at least one bin is needed, not {bins}")
    if bool(((predicted < 0.0) | (predicted > 1.0) | predicted.isnan()).any()):
        raise ValueError("a predicted probability is from 0 to 1")
    where = (predicted.double() * bins).floor().long().clamp(max=bins - 1)
    count = where.bincount(minlength=bins).double()
    nothing = torch.zeros(bins, dtype=torch.float64, device=predicted.device)
    return Reliability(
        count,
        nothing.index_add(0, where, predicted.double()) / count,
        nothing.index_add(0, where, outcome.double()) / count,
    )


def calibration_error(
    predicted: Float[Tensor, " cases"], outcome: Float[Tensor, " cases"], bins: int = 10
) -> Float[Tensor, ""]:
    """The expected calibration error (ECE) of `reliability`: Σ_b n_b/n |confidence_b - accuracy_b|; NaN without a case."""
    return reliability(predicted, outcome, bins).error
