"""Metrics of one micro-batch of an update, as sums with their denominators, all detached."""

from __future__ import annotations

import torch
from torch import Tensor

from reinlm.objectives import Gated, Metrics, Signals, k3
from reinlm.objectives.ratios import exponent, token_log_ratio

MOVED = 0.01
"""A ratio counts as moved if it differs from 1 by more than this."""


def measure_policy(
    logprobs: Tensor, log_ratio: Tensor, gated: Gated, counted: Tensor | None, signals: Signals
) -> Metrics:
    """Policy metrics over the tokens of a micro-batch; `counted` is False where the sequence mask drops a token."""
    count = logprobs.new_tensor(float(logprobs.numel()))
    moved = token_log_ratio(logprobs, signals)
    ratio = log_ratio.exp()
    sums = {
        "approx_kl": (
            k3(torch.zeros_like(moved), moved).sum(),
            count,
        ),  # k3 of KL(π_old ‖ π_θ), since π_old drew the tokens: r - 1 - log r
        "ratio/mean": (ratio.sum(), count),
        "ratio/moved": (((ratio - 1.0).abs() > MOVED).sum(), count),
    }
    if gated.known:
        sums["clip_ratio/low_mean"] = (gated.low.sum(), count)
        sums["clip_ratio/high_mean"] = (gated.high.sum(), count)
        sums["clip_ratio/region_mean"] = ((gated.low | gated.high).sum(), count)
    maxima = {"ratio/max": ratio.max()} if ratio.numel() else {}
    if signals.ref_logprobs is not None:
        sums["kl"] = (k3(logprobs, signals.ref_logprobs).sum(), count)
    if counted is not None:
        sums["sequence_mask/dropped"] = ((~counted).sum(), count)
    if signals.selected is not None:
        sums["selection/selected"] = (signals.selected.sum(), count)
    if signals.correction is not None:
        sums["correction/mean"] = (signals.correction.sum(), count)
        sums["correction/dropped"] = ((signals.correction == 0.0).sum(), count)
    mismatch, largest = _mismatch(logprobs, signals)
    return Metrics(sums | mismatch, maxima | largest)


def token_quantities(
    logprobs: Tensor, log_ratio: Tensor, gated: Gated, counted: Tensor | None, signals: Signals
) -> dict[str, Tensor]:
    """Per-token quantities of an update, each [N], for the rollout log; all detached.

    `logprobs`, `ratio`, `gate` (the gated loss), `clip` (-1 stopped at the lower bound, 1 at the upper, 0 at neither; absent
    where that is not known), `weight` (what multiplies the gated loss: token weight, correction, sequence mask),
    `advantages`, and where there is a reference `kl` (k3).
    """
    weight = signals.weights if signals.correction is None else signals.weights * signals.correction
    found = {
        "logprobs": logprobs,
        "ratio": log_ratio.exp(),
        "gate": gated.losses,
        "weight": weight if counted is None else weight * counted,
        "advantages": signals.advantages,
    }
    if gated.known:
        found["clip"] = gated.high.to(logprobs.dtype) - gated.low.to(logprobs.dtype)
    if signals.ref_logprobs is not None:
        found["kl"] = k3(logprobs, signals.ref_logprobs)
    return {name: values.detach().expand(logprobs.shape) for name, values in found.items()}


def _mismatch(logprobs: Tensor, signals: Signals) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
    """Difference of trainer and sampler, over tokens for which the sampler gave finite log-probabilities."""
    if signals.rollout_logprobs is None:
        return {}, {}
    old = logprobs if signals.old_logprobs is None else signals.old_logprobs
    known = signals.rollout_logprobs.isfinite()
    difference = (old - signals.rollout_logprobs)[known]
    count = difference.new_tensor(float(difference.numel()))
    importance = exponent(difference).exp()
    sums = {
        "sampling/logprob_difference/mean": (difference.abs().sum(), count),
        "sampling/importance_ratio/mean": (importance.sum(), count),
    }
    if not difference.numel():
        return sums, {}
    return sums, {
        "sampling/logprob_difference/max": difference.abs().max(),
        "sampling/importance_ratio/max": importance.max(),
    }


def measure_values(values: Tensor, losses: Tensor, clip: float | None, signals: Signals) -> Metrics:
    """Critic metrics over the tokens of a micro-batch."""
    count = values.new_tensor(float(values.numel()))
    sums = {"value_loss": (losses.sum(), count), "values/mean": (values.sum(), count)}
    if clip is not None and signals.old_values is not None:
        sums["values/clip_ratio"] = (((values - signals.old_values).abs() > clip).sum(), count)
    return Metrics(sums)
