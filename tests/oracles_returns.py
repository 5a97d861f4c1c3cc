"""Returns, importance weights and baselines once more, in float64 NumPy, as sums from the definitions; no library import."""

from __future__ import annotations

import math


def n_step(rewards, successors, terminated, truncated, gamma, n):
    """n rewards and then a value, by the definition, ending where the episode does."""
    out = []
    for t in range(len(rewards)):
        total, factor = 0.0, 1.0
        for k in range(t, min(t + n, len(rewards))):
            total += factor * rewards[k]
            factor *= gamma
            last = k == len(rewards) - 1 or k == t + n - 1
            if terminated[k] or truncated[k] or last:
                total += 0.0 if terminated[k] else factor * successors[k]
                break
        out.append(total)
    return out


def lambda_return(rewards, successors, terminated, truncated, gamma, lam):
    """Σ_n (1-λ) λ^{n-1} G^(n), the rest on the longest."""
    out = []
    for t in range(len(rewards)):
        end = t
        while end < len(rewards) - 1 and not (terminated[end] or truncated[end]):
            end += 1
        longest = end - t + 1
        returns = [n_step(rewards, successors, terminated, truncated, gamma, n)[t] for n in range(1, longest + 1)]
        mixed = sum((1 - lam) * lam ** (n - 1) * returns[n - 1] for n in range(1, longest))
        out.append(mixed + lam ** (longest - 1) * returns[-1])
    return out


def vtrace(logs, rewards, values, successors, terminated, truncated, gamma, lam, value_cap, trace_cap, policy_cap):
    """v_t = V_t + Σ_k γ^{k-t} (Π_{j<k} c_j) δ_k, IMPALA eq. 1, and its policy-gradient advantages."""
    ratio = [math.exp(x) for x in logs]
    targets = []
    for t in range(len(rewards)):
        total, factor = values[t], 1.0
        for k in range(t, len(rewards)):
            bootstrap = 0.0 if terminated[k] else gamma * successors[k]
            total += factor * min(value_cap, ratio[k]) * (rewards[k] + bootstrap - values[k])
            if terminated[k] or truncated[k]:
                break
            factor *= gamma * lam * min(trace_cap, ratio[k])
        targets.append(total)
    advantages = []
    for t in range(len(rewards)):
        ends = terminated[t] or truncated[t] or t == len(rewards) - 1
        following = (0.0 if terminated[t] else successors[t]) if ends else targets[t + 1]
        advantages.append(min(policy_cap, ratio[t]) * (rewards[t] + gamma * following - values[t]))
    return targets, advantages


def leave_one_out(rewards, groups):
    """R minus the mean of the others; None for a missing reward."""
    out = []
    for i, reward in enumerate(rewards):
        others = [r for j, r in enumerate(rewards) if groups[j] == groups[i] and j != i and r is not None]
        out.append(0.0 if reward is None or not others else reward - sum(others) / len(others))
    return out


def length_weighted(rewards, lengths, groups):
    """R minus Σ L R / Σ L of the group; None for a missing reward."""
    out = []
    for i, reward in enumerate(rewards):
        peers = [j for j in range(len(rewards)) if groups[j] == groups[i] and rewards[j] is not None]
        total = sum(lengths[j] for j in peers)
        equal = len({rewards[j] for j in peers}) <= 1
        if reward is None or equal or not total:
            out.append(0.0)
        else:
            out.append(reward - sum(lengths[j] * rewards[j] for j in peers) / total)
    return out


def whitened(values, epsilon=1e-8, bessel=False):
    """Mean 0, deviation 1."""
    if len(set(values)) <= 1:
        return [0.0] * len(values)
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / (len(values) - (1 if bessel else 0))
    return [(v - mean) / math.sqrt(variance + epsilon) for v in values]
