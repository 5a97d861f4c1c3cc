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

    low: float = 0.2
    high: float = 0.2
    weights: str | int = "token"
    ratio: str = "token"  # or turn, sequence, product, sequence_token
    against: str = "old"  # or rollout
    gate: str = "clip"  # or none, soft, weight
    dual: float | None = None
    soft: tuple[float, float] = (1.0, 1.05)
    cap: float = 5.0
    floor: float | None = None
    masked: bool = False
    kl: str | None = None  # k2, k3 or k3_unbiased, to the reference
    beta: float = 0.0
    old_kl: str | None = None  # k2 or k3, to the old policy
    old_beta: float = 0.0
    threshold: float | None = None  # of the off-policy sequence mask
    corrections: tuple = ()  # (kind, …) in order


RECIPES = {
    "reinforce": Recipe(gate="none", weights="sum"),
    "rloo": Recipe(gate="none", weights="sum"),
    "reinforce_pp": Recipe(),
    "ppo": Recipe(),
    "ppo_penalty": Recipe(gate="none", old_kl="k3", old_beta=1.0),
    "grpo": Recipe(weights="sequence", kl="k3", beta=0.04),
    "dr_grpo": Recipe(weights=3000),
    "dapo": Recipe(0.2, 0.28),
    "gspo": Recipe(3e-4, 4e-4, "sequence", "sequence"),
    "gspo_token": Recipe(3e-4, 4e-4, "sequence", "sequence_token"),
    "sapo": Recipe(gate="soft", weights="sequence"),
    "cispo": Recipe(gate="weight"),
    "distill": Recipe(gate="none"),
    "raft_pp": Recipe(),
    "reinforce_rej": Recipe(),
    "scaling_grpo": Recipe(weights="sequence", kl="k3_unbiased", beta=0.001, threshold=0.1),
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
    """Value, gradient with respect to `logprobs` [B, T], and metrics of a policy loss."""
    rows, columns = mask.shape
    weight = token_weights(mask, recipe.weights, groups)
    trust = correction_weights(recipe.corrections, old, rollout, mask) if recipe.corrections else None
    value, gradient = 0.0, np.zeros((rows, columns))
    seen: dict[str, list[float]] = {
        name: [] for name in ("low", "high", "ratio", "moved", "kl", "gap", "importance", "dropped", "weight")
    }
    for i in range(rows):
        tokens = [t for t in range(columns) if mask[i, t]]
        before = old if recipe.against == "old" else rollout
        drew = old if rollout is None else rollout
        left = sum(drew[i, t] - logprobs[i, t] for t in tokens) / max(len(tokens), 1)
        for t in tokens:
            peers = [t] if recipe.ratio == "token" else run_of(mask[i], t) if recipe.ratio == "turn" else tokens
            pooled = 1 if recipe.ratio == "product" else len(peers)
            ratio = math.exp(sum(logprobs[i, s] - before[i, s] for s in peers) / pooled)
            loss, slope, low, high = gate(recipe, ratio, advantages[i, t], logprobs[i, t])
            dropped = recipe.threshold is not None and advantages[i, t] < 0 and left > recipe.threshold
            factor = (0.0 if dropped else 1.0) * (1.0 if trust is None else trust[i, t])
            value += weight[i, t] * factor * loss
            paths = [t] if recipe.ratio == "sequence_token" or recipe.gate == "weight" else peers
            for s in paths:
                gradient[i, s] += weight[i, t] * factor * slope / (1 if recipe.ratio == "product" else len(paths))
            penalty, slope = ties(recipe, logprobs[i, t], old[i, t], before[i, t], None if ref is None else ref[i, t])
            value += weight[i, t] * penalty
            gradient[i, t] += weight[i, t] * slope
            moved = logprobs[i, t] - old[i, t]
            found = {"low": low, "high": high, "ratio": ratio, "moved": moved, "dropped": dropped}
            found |= {"weight": 0.0 if trust is None else trust[i, t]}
            if ref is not None:
                found["kl"] = math.exp(ref[i, t] - logprobs[i, t]) - 1 - (ref[i, t] - logprobs[i, t])
            if rollout is not None:
                found |= {"gap": abs(old[i, t] - rollout[i, t]), "importance": math.exp(old[i, t] - rollout[i, t])}
            for name, x in found.items():
                seen[name].append(x)
    if not seen["ratio"]:
        return 0.0, gradient, {}
    return value, gradient, _metrics(recipe, seen)


def _metrics(recipe, seen):
    both = [a or b for a, b in zip(seen["low"], seen["high"], strict=True)]
    metrics = {
        "approx_kl": mean(math.exp(m) - 1 - m for m in seen["moved"]),
        "ratio/mean": mean(seen["ratio"]),
        "ratio/moved": mean(abs(r - 1) > 0.01 for r in seen["ratio"]),
        "ratio/max": max(seen["ratio"]),
        "clip_ratio/low_mean": mean(seen["low"]),
        "clip_ratio/high_mean": mean(seen["high"]),
        "clip_ratio/region_mean": mean(both),
    }
    if seen["kl"]:
        metrics["kl"] = mean(seen["kl"])
    if recipe.threshold is not None:
        metrics["sequence_mask/dropped"] = mean(seen["dropped"])
    if recipe.corrections:
        metrics["correction/mean"] = mean(seen["weight"])
        metrics["correction/dropped"] = mean(w == 0.0 for w in seen["weight"])
    if seen["gap"]:
        metrics["sampling/logprob_difference/mean"] = mean(seen["gap"])
        metrics["sampling/logprob_difference/max"] = max(seen["gap"])
        metrics["sampling/importance_ratio/mean"] = mean(seen["importance"])
        metrics["sampling/importance_ratio/max"] = max(seen["importance"])
    return metrics


def run_of(row, t):
    """The unbroken stretch of a row's mask that holds t."""
    first = last = t
    while first > 0 and row[first - 1]:
        first -= 1
    while last + 1 < len(row) and row[last + 1]:
        last += 1
    return list(range(first, last + 1))


def gate(recipe, ratio, advantage, logprob):
    """Loss, its slope along the log-ratio (along log π for a truncated weight), and beyond which bound the ratio is."""
    if recipe.gate == "none":
        return -ratio * advantage, -ratio * advantage, False, False
    if recipe.gate == "soft":
        tau = recipe.soft[0] if advantage > 0 else recipe.soft[1]
        p = 1 / (1 + math.exp(-tau * (ratio - 1)))
        return -4 / tau * p * advantage, -4 * p * (1 - p) * ratio * advantage, False, False
    if recipe.gate == "weight":
        floor = recipe.floor or 0.0
        low, high = ratio < floor, ratio > recipe.cap
        factor = min(max(ratio, floor), recipe.cap)
        if recipe.masked:
            low, high = low and advantage < 0, high and advantage > 0
            factor = 0.0 if low or high else factor
        return -factor * advantage * logprob, -factor * advantage, low, high
    bounded = min(max(ratio, 1 - recipe.low), 1 + recipe.high)
    gain = min(ratio * advantage, bounded * advantage)
    low = advantage < 0 and ratio < 1 - recipe.low
    high = advantage > 0 and ratio > 1 + recipe.high
    if recipe.dual is not None and advantage < 0 and ratio > recipe.dual:
        gain, high = recipe.dual * advantage, True
    return -gain, 0.0 if low or high else -ratio * advantage, low, high


def ties(recipe, logprob, old, before, ref):
    """The KL terms of a token, and their slope along log π."""
    value, slope = 0.0, 0.0
    if recipe.kl and ref is not None:
        d = logprob - ref
        k3, fall = math.exp(-d) - 1 + d, 1 - math.exp(-d)
        if recipe.kl == "k2":
            k3, fall = d * d / 2, d
        if recipe.kl == "k3_unbiased":
            ratio = math.exp(logprob - before)
            k3, fall = ratio * k3, ratio * d
        value, slope = recipe.beta * k3, recipe.beta * fall
    if recipe.old_kl:
        x = logprob - old
        value += recipe.old_beta * (x * x / 2 if recipe.old_kl == "k2" else math.exp(x) - 1 - x)
        slope += recipe.old_beta * (x if recipe.old_kl == "k2" else math.exp(x) - 1)
    return value, slope


def correction_weights(corrections, old, rollout, mask):
    """Constant weights for samples of another policy: (kind, values …) one after the other. Rows are sequences."""
    rows, columns = mask.shape
    out = np.where(mask, 1.0, 0.0)
    for kind, *values in corrections:
        total = out[mask].sum()
        for i in range(rows):
            tokens = [t for t in range(columns) if mask[i, t]]
            logs = [old[i, t] - rollout[i, t] for t in tokens]
            for t in tokens:
                rho = math.exp(old[i, t] - rollout[i, t])
                if values and values[-1] == "sequence":
                    rho = math.exp(sum(logs))
                if values and values[-1] == "turn":
                    rho = math.exp(sum(old[i, s] - rollout[i, s] for s in run_of(mask[i], t)))
                if kind == "truncated":
                    out[i, t] *= min(max(rho, values[1]), values[0])
                elif kind == "masked":
                    out[i, t] *= rho if values[0] <= rho <= values[1] else 0.0
                elif kind == "geometric":
                    out[i, t] *= float(values[0] <= math.exp(mean(logs)) <= values[1])
                elif kind == "k3_filter":
                    out[i, t] *= float(mean(math.exp(x) - 1 - x for x in logs) <= values[0])
                elif kind == "self_normalized":
                    out[i, t] *= 0.0 if total == 0.0 else mask.sum() / total
    return out


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
