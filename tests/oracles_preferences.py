"""Losses and figures of judged answers once more, in float64 NumPy: loops over single pairs, answers and rankings, written from
the papers.

Nothing here imports the library; it is what the library is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def softplus(x: float) -> float:
    """log(1 + e^x), which is -log σ(-x)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def pair_losses(name: str, data: dict[str, np.ndarray], values: dict) -> np.ndarray:
    """A loss of each pair; `data` has chosen, rejected, ref_chosen, ref_rejected, chosen_length, rejected_length, margin."""
    mean_length = data["chosen_length"].mean() if len(data["chosen"]) else 0.0
    rows = [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)]
    return np.array([_pair(name, row, values, mean_length) for row in rows])


def _pair(name: str, row: dict, values: dict, mean_length: float) -> float:
    beta, smoothing = values.get("beta", 1.0), values.get("label_smoothing", 0.0)
    lengths = max(1, row["chosen_length"]), max(1, row["rejected_length"])
    chosen, rejected = row["chosen"], row["rejected"]
    up, down = chosen - row["ref_chosen"], rejected - row["ref_rejected"]
    h = up - down
    likelihood = {
        "sequence_sum": -chosen,
        "sequence_mean": -chosen / lengths[0],
        "token_mean": -chosen / max(mean_length, 1.0),
    }
    imitation = values.get("sft_coefficient", 0.0) * likelihood[values.get("sft_aggregation", "sequence_sum")]
    if name == "dpo":
        return softplus(-(beta * h - values["margin_weight"] * row["margin"]))
    if name == "cdpo":
        return (1 - smoothing) * softplus(-beta * h) + smoothing * softplus(beta * h)
    if name == "robust_dpo":
        return ((1 - smoothing) * softplus(-beta * h) - smoothing * softplus(beta * h)) / (1 - 2 * smoothing)
    if name == "ipo":
        h = up / lengths[0] - down / lengths[1] if values["length_normalized"] else h
        return (h - 1 / (2 * beta)) ** 2
    if name == "hinge":
        return max(0.0, 1 - beta * h)
    if name == "dpo_norm":
        return softplus(-beta * (up / lengths[0] - down / lengths[1]))
    if name == "apo_zero":
        return 1 - sigmoid(beta * up) + sigmoid(beta * down)
    if name == "sppo":
        return (up - 0.5 / beta) ** 2 + (down + 0.5 / beta) ** 2
    if name == "bco_pair":
        return softplus(-beta * up) + softplus(beta * down)
    if name == "dpo_sft":
        return softplus(-beta * h) + imitation
    if name == "slic":
        return max(0.0, values["delta"] - (chosen - rejected)) + imitation
    if name == "simpo":
        return softplus(-(beta * chosen / lengths[0] - beta * rejected / lengths[1] - values["gamma"]))
    if name == "cpo":
        return softplus(-beta * (chosen - rejected)) + imitation
    assert name == "orpo"
    odds = [mean - math.log(-math.expm1(mean)) for mean in (chosen / lengths[0], rejected / lengths[1])]
    return imitation + beta * softplus(-(odds[0] - odds[1]))


def pair_rewards(name: str, data: dict[str, np.ndarray], values: dict) -> tuple[np.ndarray, np.ndarray]:
    """What the policy is taken to say of the worth of both answers: β times what the loss compares, SLiC-HF without β."""
    found: tuple[list[float], list[float]] = ([], [])
    for row in zip(*data.values(), strict=True):
        pair = dict(zip(data, row, strict=True))
        for rewards, side in zip(found, ("chosen", "rejected"), strict=True):
            worth, length = pair[side], max(1, pair[f"{side}_length"])
            if name not in ("slic", "orpo", "simpo", "cpo"):
                worth -= pair[f"ref_{side}"]
            if name in ("orpo", "simpo", "dpo_norm"):
                worth /= length
            rewards.append(worth * values.get("beta", 1.0))
    return np.array(found[0]), np.array(found[1])


def kto_losses(log_ratio: np.ndarray, desirable: np.ndarray, mismatched: np.ndarray, values: dict) -> np.ndarray:
    z0 = max(0.0, mismatched.mean())
    good = [values["desirable_weight"] * (1 - sigmoid(values["beta"] * (a - z0))) for a in log_ratio]
    bad = [values["undesirable_weight"] * (1 - sigmoid(values["beta"] * (z0 - a))) for a in log_ratio]
    return np.where(desirable, good, bad)


def bco_delta(rewards: np.ndarray, desirable: np.ndarray) -> float:
    """Of all rewards of a run so far."""
    means = [rewards[chosen].mean() for chosen in (desirable, ~desirable) if chosen.any()]
    return float(np.mean(means))


def bco_losses(rewards: np.ndarray, desirable: np.ndarray, delta: float) -> np.ndarray:
    return np.array([softplus(-(r - delta) if good else r - delta) for r, good in zip(rewards, desirable, strict=True)])


# ---------------------------------------------------------------------------------------------- reward models


def unit_losses(name: str, units: list[tuple[list[float], list[int], float]], values: dict) -> np.ndarray:
    """A loss of each unit: (scores, ranks, margin)."""
    return np.array([_unit(name, *unit, values) for unit in units])


def _unit(name: str, scores: list[float], ranks: list[int], margin: float, values: dict) -> float:
    if name == "plackett_luce":
        total = 0.0
        for own, rank in zip(scores, ranks, strict=True):
            top = values.get("top")
            if rank == max(ranks) or (top is not None and rank >= top):
                continue
            left = [other for other, place in zip(scores, ranks, strict=True) if place >= rank]
            total -= own - math.log(sum(math.exp(other) for other in left))
        return total
    losses = []
    for i, j in combinations(range(len(scores)), 2):
        d, tied = scores[i] - scores[j], ranks[i] == ranks[j]
        if name == "bradley_terry" and not tied:
            excess, smoothing = d - values["margin_weight"] * margin, values["label_smoothing"]
            loss = (1 - smoothing) * softplus(-excess) + smoothing * softplus(excess)
            losses.append(loss + values["centering"] * (scores[i] + scores[j]) ** 2)
        elif name == "davidson":
            weights = math.exp(d / 2), math.exp(-d / 2), values["nu"]
            losses.append(-math.log(weights[2 if tied else 0] / sum(weights)))
        elif name == "rao_kupper":
            theta = values["theta"]
            win = sigmoid(d - math.log(theta))
            tie = (theta**2 - 1) * math.exp(d) / ((math.exp(d) + theta) * (theta * math.exp(d) + 1))
            losses.append(-math.log(tie if tied else win))
    return float(np.mean(losses)) if losses else 0.0


def expected_calibration_error(predicted: np.ndarray, outcome: np.ndarray, bins: int) -> float:
    total = 0.0
    for b in range(bins):
        inside = (predicted >= b / bins) & ((predicted < (b + 1) / bins) | (b == bins - 1))
        if inside.any():
            total += inside.mean() * abs(predicted[inside].mean() - outcome[inside].mean())
    return total


def area_under_curve(positive: np.ndarray, negative: np.ndarray) -> float:
    return float(np.mean([[1.0 if p > n else 0.5 if p == n else 0.0 for n in negative] for p in positive]))


# ---------------------------------------------------------------------------------------------- figures of answers


def mean_best(scores: Sequence[float], values: Sequence[float], n: int) -> float:
    """The value of the best of n answers, over every choice of n of them."""
    chosen = [max(part, key=lambda i: (scores[i], -i)) for part in combinations(range(len(scores)), n)]
    return float(np.mean([values[i] for i in chosen]))


def most_said(answers: Sequence[str | None]) -> int | None:
    """Every answer that can be read is compared with every other."""
    votes = [sum(one == other for other in answers) if one is not None else 0 for one in answers]
    return votes.index(max(votes)) if any(votes) else None


def grams(text: str, n: int) -> list[str]:
    """Runs of n letters, where each letter is a token."""
    return [text[start : start + n] for start in range(len(text)) if start + n <= len(text)]


def jaccard(first: str, second: str) -> float:
    a, b = (set(grams(text, 1) + grams(text, 2)) for text in (first, second))
    return 1.0 if a == b else sum(gram in b for gram in a) / (len(a) + sum(gram not in a for gram in b))


def entropy(answers: Sequence[str]) -> float:
    shares = [answers.count(one) / len(answers) for one in set(answers)]
    return -sum(share * math.log(share) for share in shares)


def stability_index(counts: np.ndarray, reference: np.ndarray) -> float:
    total = 0.0
    for count, q in zip(counts, reference, strict=True):
        p = (count + 0.5) / (counts.sum() + len(counts) / 2)
        total += p * math.log(p / q) + q * math.log(q / p)
    return float(total)


# ---------------------------------------------------------------------------------------------- intervals


def normal_share(z: float) -> float:
    """The share of a standard normal distribution that is below z."""
    return (1.0 + math.erf(z / math.sqrt(2.0))) / 2.0


def bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Where a condition that holds at `low`, and not at `high`, ceases to."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


Z = bisect(lambda z: normal_share(z) < 0.975, 0.0, 10.0)


def wilson_ends(right: np.ndarray, count: np.ndarray) -> tuple[float, float]:
    """The shares at which the one that was found is 1.96 standard errors away, sought by bisection on either side of it."""
    clusters, total = len(count), count.sum()
    p = right.sum() / total
    residuals = [r - p * c for r, c in zip(right, count, strict=True)]
    if clusters == 1 or p in (0.0, 1.0):
        n = float(clusters)
    else:
        variance = clusters / (clusters - 1) * sum(r**2 for r in residuals) / total**2
        n = p * (1 - p) / variance if variance > 0 else math.inf
    n = min(max(n, clusters), total)

    def far(share: float) -> bool:
        return (p - share) ** 2 > Z**2 * share * (1 - share) / n

    return bisect(far, 0.0, p) if p > 0 else 0.0, 1.0 - bisect(lambda rest: far(1 - rest), 0.0, 1 - p) if p < 1 else 1.0


def bias_corrected_ends(estimate: float, values: np.ndarray) -> tuple[float, float]:
    below = (np.sum(values < estimate) + np.sum(values <= estimate)) / (2 * len(values))
    z0 = bisect(lambda z: normal_share(z) < min(max(below, 0.025), 0.975), -10.0, 10.0)
    low, high = (float(np.quantile(values, normal_share(2 * z0 + side * Z))) for side in (-1, 1))
    return min(low, estimate), max(high, estimate)
