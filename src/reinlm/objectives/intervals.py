"""95 % intervals of figures over clusters: Wilson's of a share, Newcombe's of a difference, Efron's bootstrap of the rest.

A cluster is what is drawn independently: a prompt with all that was measured on it.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float

Interval = tuple[float, float]
"""Lower and upper end."""
_NORMAL = NormalDist()
_Z = _NORMAL.inv_cdf(0.975)


def wilson_interval(right: Float[Tensor, " clusters"], count: Float[Tensor, " clusters"]) -> Interval:
    """The interval of the share p = Σ right / Σ count, with n the effective number of cases:

        (p + z²/2n ± z √(p(1 - p)/n + z²/4n²)) / (1 + z²/n),    z = 1.96

    n is p(1 - p) over the variance that the clusters' sums show, at least the number of clusters and at most the number of
    cases; where all cases are alike, or of one cluster, each cluster counts once. Wilson 1927; the effective number is Kish 1965.

    Args:
        right: of each cluster the sum of values from 0 to 1.
        count: of each cluster the number of its cases, at least 1.

    Raises ValueError without a cluster.
    """
    clusters = len(count)
    if not clusters:
        raise ValueError("a share of no cases has no interval")
    right, count = right.double(), count.double()
    total = float(count.sum())
    p = float(right.sum()) / total
    spread = float((right - p * count).square().sum()) / total**2
    if clusters > 1:
        spread *= clusters / (clusters - 1)
    shows_nothing = clusters == 1 or p in (0.0, 1.0)
    effective = clusters if shows_nothing else p * (1 - p) / spread if spread > 0 else total
    n = min(max(effective, clusters), total)
    center = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    return (center - half if p > 0.0 else 0.0), (center + half if p < 1.0 else 1.0)


def difference_interval(first: tuple[float, Interval], second: tuple[float, Interval]) -> Interval:
    """The interval of p₁ - p₂ of two independent figures, each given with its own interval [l, u]:

        p₁ - p₂ - √((p₁ - l₁)² + (u₂ - p₂)²),    p₁ - p₂ + √((u₁ - p₁)² + (p₂ - l₂)²)

    Newcombe 1998 (Statistics in Medicine 17: 873), its method 10 where the intervals are Wilson's.
    """
    (p, (low, high)), (q, (other_low, other_high)) = first, second
    return p - q - math.hypot(p - low, other_high - q), p - q + math.hypot(high - p, q - other_low)


def clustered_mean_interval(total: Float[Tensor, " clusters"], count: Float[Tensor, " clusters"]) -> Interval:
    """The interval of the mean m = Σ total / Σ count of many clusters: m ± 1.96 √(C/(C-1) Σ (total - m count)²) / Σ count.

    That is m ± 1.96 s/√C where each cluster is one value; of a single cluster both ends are m. The variance is that of a ratio
    of sums (Cochran 1977, Sampling Techniques, chapter 6).

    Args:
        total: of each cluster the sum of its values.
        count: of each cluster the number of its values, at least 1.

    Raises ValueError without a cluster.
    """
    clusters, cases = len(count), float(count.sum())
    if not clusters:
        raise ValueError("a mean of no cases has no interval")
    mean = float(total.double().sum()) / cases
    spread = float((total.double() - mean * count.double()).square().sum())
    half = _Z * math.sqrt(spread * clusters / (clusters - 1)) / cases if clusters > 1 else 0.0
    return mean - half, mean + half


def bootstrap_counts(clusters: int, resamples: int, seed: int) -> Float[Tensor, "resamples clusters"]:
    """How often each cluster stands in each of `resamples` samples of as many clusters, drawn with replacement; float64.

    Efron 1979. The same for equal seeds, as weights for figures of weighted cases.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(clusters, (resamples, clusters), generator=generator)
    nothing = torch.zeros(resamples, clusters, dtype=torch.float64)
    return nothing.scatter_add_(1, drawn, torch.ones_like(nothing))


def bootstrap_interval(estimate: float, resampled: Float[Tensor, " resamples"]) -> Interval:
    """Efron's bias-corrected percentile interval, of a figure with its values in bootstrap samples:

        the quantiles Φ(2 z₀ ± 1.96) of the values,    Φ(z₀) the share of them below the estimate, equal ones counting half

    Φ(z₀) is taken to be from 0.025 to 0.975, and the interval holds the estimate, also where the values in samples lean to one
    side, as those of the calibration error do: plain percentiles would leave it out. Efron 1987 (JASA 82: 171) with
    acceleration 0. NaN values are left out; NaN where none is left.
    """
    known = resampled[~resampled.isnan()].double()
    if not len(known):
        return math.nan, math.nan
    below = float(((known < estimate).double() + 0.5 * (known == estimate).double()).mean())
    shift = 2 * _NORMAL.inv_cdf(min(max(below, 0.025), 0.975))
    ends = torch.tensor([_NORMAL.cdf(shift - _Z), _NORMAL.cdf(shift + _Z)], dtype=torch.float64)
    low, high = known.quantile(ends).tolist()
    return min(low, estimate), max(high, estimate)
