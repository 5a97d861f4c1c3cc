"""The formulas once more, in float64 NumPy: plain loops over padded [B, T] arrays with a mask, written from the papers.

Nothing here imports the library; it is what the library is compared with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Recipe:
    """What a policy loss is made of. `weights`: token, sequence, prompt, sum or a constant budget of that many tokens."""

    low: float
    high: float
    weights: str | int
    sequence_ratio: bool = False
    kl: str | None = None
    beta: float = 0.0


RECIPES = {
    "grpo": Recipe(0.2, 0.2, "sequence", kl="k3", beta=0.04),
    "dapo": Recipe(0.2, 0.28, "token"),
    "gspo": Recipe(3e-4, 4e-4, "sequence", sequence_ratio=True),
}


def token_weights(mask, weights, groups=None):
    """How much each token of a padded batch weighs."""
    rows, columns = mask.shape
    groups = list(range(rows)) if groups is None else list(groups)
    filled = [i for i in range(rows) if mask[i].any()]
    total = int(mask.sum())
    in_group = {g: sum(int(mask[i].sum()) for i in range(rows) if groups[i] == g) for g in set(groups)}
    prompts = sum(1 for n in in_group.values() if n > 0)
    out = np.zeros((rows, columns))
    for i in range(rows):
        for t in range(columns):
            if not mask[i, t]:
                continue
            if weights == "token":
                out[i, t] = 1 / total
            elif weights == "sequence":
                out[i, t] = 1 / len(filled) / mask[i].sum()
            elif weights == "prompt":
                out[i, t] = 1 / prompts / in_group[groups[i]]
            elif weights == "sum":
                out[i, t] = 1 / len(filled)
            else:
                out[i, t] = 1 / (rows * weights)
    return out


def policy_loss(recipe, logprobs, old, advantages, mask, ref=None, rollout=None, groups=None):
    """Value, gradient with respect to `logprobs` [B, T], and metrics of the clipped policy loss."""
    rows, columns = mask.shape
    weight = token_weights(mask, recipe.weights, groups)
    value, gradient = 0.0, np.zeros((rows, columns))
    low, high, ratios, moves, kls, gaps, trust = [], [], [], [], [], [], []
    for i in range(rows):
        tokens = [t for t in range(columns) if mask[i, t]]
        mean_move = sum(logprobs[i, t] - old[i, t] for t in tokens) / max(len(tokens), 1)
        for t in tokens:
            ratio = math.exp(mean_move if recipe.sequence_ratio else logprobs[i, t] - old[i, t])
            advantage = advantages[i, t]
            bounded = min(max(ratio, 1 - recipe.low), 1 + recipe.high)
            value += weight[i, t] * -min(ratio * advantage, bounded * advantage)
            stopped_low = advantage < 0 and ratio < 1 - recipe.low
            stopped_high = advantage > 0 and ratio > 1 + recipe.high
            slope = 0.0 if stopped_low or stopped_high else -ratio * advantage
            if recipe.sequence_ratio:
                for s in tokens:
                    gradient[i, s] += weight[i, t] * slope / len(tokens)
            else:
                gradient[i, t] += weight[i, t] * slope
            if recipe.kl and ref is not None:
                d = logprobs[i, t] - ref[i, t]
                value += weight[i, t] * recipe.beta * (d * d / 2 if recipe.kl == "k2" else math.exp(-d) - 1 + d)
                gradient[i, t] += weight[i, t] * recipe.beta * (d if recipe.kl == "k2" else 1 - math.exp(-d))
            low.append(stopped_low)
            high.append(stopped_high)
            ratios.append(ratio)
            moves.append(logprobs[i, t] - old[i, t])
            if ref is not None:
                kls.append(math.exp(ref[i, t] - logprobs[i, t]) - 1 - (ref[i, t] - logprobs[i, t]))
            if rollout is not None:
                gaps.append(abs(old[i, t] - rollout[i, t]))
                trust.append(math.exp(old[i, t] - rollout[i, t]))
    if not ratios:
        return 0.0, gradient, {}
    metrics = {
        "approx_kl": mean(math.exp(m) - 1 - m for m in moves),
        "ratio/mean": mean(ratios),
        "ratio/max": max(ratios),
        "clip_ratio/low_mean": mean(low),
        "clip_ratio/high_mean": mean(high),
        "clip_ratio/region_mean": mean(a or b for a, b in zip(low, high, strict=True)),
    }
    if ref is not None:
        metrics["kl"] = mean(kls)
    if rollout is not None:
        metrics["sampling/logprob_difference/mean"] = mean(gaps)
        metrics["sampling/logprob_difference/max"] = max(gaps)
        metrics["sampling/importance_ratio/mean"] = mean(trust)
        metrics["sampling/importance_ratio/max"] = max(trust)
    return value, gradient, metrics


def mean(values):
    values = [float(v) for v in values]
    return sum(values) / len(values)


def group_advantages(rewards, groups, standardize, bessel=False, epsilon=1e-6):
    """R - mean of the group, or its z-score; None for a missing reward."""
    out = []
    for reward, group in zip(rewards, groups, strict=True):
        peers = [r for r, g in zip(rewards, groups, strict=True) if g == group and r is not None]
        if reward is None or max(peers) - min(peers) <= 1e-12 * max(abs(p) for p in peers):
            out.append(0.0)
            continue
        centre = sum(peers) / len(peers)
        variance = sum((p - centre) ** 2 for p in peers) / (len(peers) - (1 if bessel else 0))
        out.append((reward - centre) / (math.sqrt(variance) + epsilon) if standardize else reward - centre)
    return out


def process_advantages(steps_of_answer, lengths, bessel=False, epsilon=0.0):
    """One group. steps_of_answer[i] = [(token, reward), …]; the advantage of each token of each answer."""
    rewards = [r for steps in steps_of_answer for _, r in steps]
    normalized = iter(group_advantages(rewards, [0] * len(rewards), True, bessel, epsilon))
    placed = [[(token, next(normalized)) for token, _ in steps] for steps in steps_of_answer]
    return [
        [sum(r for end, r in steps if end >= t) for t in range(length)]
        for steps, length in zip(placed, lengths, strict=True)
    ]


def gae_with_holes(rewards, values, mask, gamma, lam, final=0.0):
    """One row, holes carried over: masked positions change neither the next value nor the running advantage."""
    next_value, running = final, 0.0
    out = [0.0] * len(rewards)
    for t in reversed(range(len(rewards))):
        if mask[t]:
            delta = rewards[t] + gamma * next_value - values[t]
            running = delta + gamma * lam * running
            next_value = values[t]
            out[t] = running
    return out


def gae_by_sums(rewards, values, successors, terminated, truncated, gamma, lam):
    """A_t = Σ_k (γλ)^k δ_{t+k} up to the first end, without a recursion."""
    out = []
    for t in range(len(rewards)):
        total, factor = 0.0, 1.0
        for k in range(t, len(rewards)):
            bootstrap = 0.0 if terminated[k] else gamma * successors[k]
            total += factor * (rewards[k] + bootstrap - values[k])
            if terminated[k] or truncated[k]:
                break
            factor *= gamma * lam
        out.append(total)
    return out


def overlong(length, limit, cache):
    """DAPO's soft overlong punishment, by cases."""
    if length <= limit - cache:
        return 0.0
    if length <= limit:
        return ((limit - cache) - length) / cache
    return -1.0


def central_difference(f, x, h=1e-6):
    """The gradient of a scalar function of an array."""
    x = np.array(x, dtype=np.float64)
    out = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[index] += h
        down[index] -= h
        out[index] = (f(up) - f(down)) / (2 * h)
    return out
