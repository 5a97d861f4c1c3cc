"""Scores of learned reward models: ensembles, running normalisation, and how far scores have drifted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def ensemble_score(
    outputs: Float[Tensor, "answers members criteria"],
    weights: Float[Tensor, " criteria"],
    spread_penalty: float = 0.0,
) -> tuple[Float[Tensor, " answers"], Float[Tensor, " answers"]]:
    """The score of each answer, and the spread of the members about it.

        s_k = Σ_c w_c r_kc        score = mean_k s_k - penalty · spread        spread = sqrt(mean_k (s_k - mean s)²)

    The spread is the population standard deviation, 0 of one member. Coste et al., arXiv 2310.02743; Eisenstein et al.,
    arXiv 2312.09244.

    Args:
        spread_penalty: at least 0; 0 is the mean.
    """
    members = outputs @ weights
    mean = members.mean(-1)
    spread = (members - mean[:, None]).square().mean(-1).sqrt()
    return mean - spread_penalty * spread if spread_penalty else mean, spread


def population_stability_index(counts: Int[Tensor, " bins"], reference: Float[Tensor, " bins"]) -> Float[Tensor, ""]:
    """PSI = Σ_b (p_b - q_b) ln(p_b / q_b), at least 0, in nats: how far a sample has moved from a reference over the same bins.

    q are the shares of the reference; p those of the sample, with half an observation added to each bin, so that an empty
    one stays finite. By convention below 0.1 is no shift and above 0.25 a large one. It is the symmetric Kullback–Leibler
    divergence (Jeffreys 1946).

    Args:
        counts: observations of the sample by bin, at least one in all.
        reference: shares above 0 that add up to 1.
    """
    shares = (counts + 0.5) / (counts.sum() + 0.5 * len(counts))
    return ((shares - reference) * (shares / reference).log()).sum()


@dataclass
class RunningMoments:
    """Count, mean and sum of squared deviations of all values so far, joined part by part (Chan, Golub and LeVeque 1979).

    Example:
        >>> import torch
        >>> moments = RunningMoments()
        >>> moments.add(torch.tensor([1.0, 3.0]))
        >>> moments.mean, moments.deviation
        (2.0, 1.0)
    """

    count: int = 0
    """Values so far."""
    mean: float = 0.0
    squares: float = 0.0
    """Σ (x - mean)²."""

    def add(self, values: Float[Tensor, " values"]) -> None:
        """Take further values in."""
        number = values.numel()
        if not number:
            return
        double = values.double()
        mean = float(double.mean())
        total = self.count + number
        gap = mean - self.mean
        self.squares += float((double - mean).square().sum()) + gap**2 * self.count * number / total
        self.mean += gap * number / total
        self.count = total

    @property
    def deviation(self) -> float:
        """The population standard deviation; 1 where it is not above 0, as of one value."""
        deviation = (self.squares / self.count) ** 0.5 if self.count else 0.0
        return deviation if deviation > 0.0 else 1.0

    def normalised(self, values: Float[Tensor, " values"]) -> Float[Tensor, " values"]:
        """(x - mean) / deviation."""
        return (values - self.mean) / self.deviation
