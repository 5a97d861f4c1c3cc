"""Intervals: of means over seeds or prompts, and of shares of answers."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float | None, float | None]:
    """Mean of independent values, and Student's interval of it; both ends are None for a single value.

        mean ± t(confidence, n - 1) · s / √n,     s the standard deviation with n - 1

    The interval assumes that the mean is roughly normal. Of few seeds it is wide: with 2 about 9 s, with 5 about 1.2 s each way.

    Example:
        >>> mean_interval([0.25])
        (0.25, None, None)
        >>> [round(end, 3) for end in mean_interval([1.0, 2.0, 3.0])]
        [2.0, -0.484, 4.484]
    """
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return mean, None, None
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_quantile(n - 1, confidence) * spread / math.sqrt(n)
    return mean, mean - half, mean + half


def t_quantile(freedom: int, confidence: float = 0.95) -> float:
    """The t with P(|T| < t) = confidence for Student's T with `freedom` degrees of freedom.

    With t = √freedom · tan θ, P(|T| < t) = ∫₀^θ cos^(freedom-1) / ∫₀^(π/2) cos^(freedom-1); solved by bisection.

    Example:
        >>> [round(t_quantile(n), 3) for n in (1, 4, 30)]
        [12.706, 2.776, 2.042]
    """

    def integral(end: float, pieces: int = 2000) -> float:  # Simpson's rule
        width = end / pieces
        inner = math.fsum((4 if i % 2 else 2) * math.cos(i * width) ** (freedom - 1) for i in range(1, pieces))
        return width / 3 * (1.0 + inner + math.cos(end) ** (freedom - 1))

    goal, low, high = confidence * integral(math.pi / 2), 0.0, math.pi / 2
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if integral(middle) < goal else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def share_interval(rows: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Wilson's 95 % interval for the share of 1 among 0 and 1, with answers to one prompt counted as one cluster. A tie is ½.

    See `reinlm.objectives.intervals.wilson_interval`.
    """
    import torch

    from reinlm.objectives.intervals import wilson_interval  # it loads torch

    sums, counts = [float(sum(row)) for row in rows], [float(len(row)) for row in rows]
    return wilson_interval(torch.tensor(sums, dtype=torch.float64), torch.tensor(counts, dtype=torch.float64))
