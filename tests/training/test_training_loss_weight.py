"""The column `loss_weight` multiplies a token's weight in the loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sharded_worker import build, groups

from reinlm.batches import feedback, token_batch
from reinlm.records import RolloutGroup, ScoredGroup


def weighted(value: float) -> list[ScoredGroup]:
    """The groups of a step, every token with this weight."""
    made = []
    for group in groups(0):
        rollouts = []
        for rollout in group.group.rollouts:
            (segment,) = rollout.segments
            column = {"loss_weight": np.full(segment.length, value)}
            rollouts.append(replace(rollout, segments=(replace(segment, columns={**segment.columns, **column}),)))
        made.append(replace(group, group=RolloutGroup(group.group.task, tuple(rollouts))))
    return made


def gradient_norm(step: list[ScoredGroup]) -> float:
    """Of the first update of policy on these groups."""
    updater = build("grpo", 1, {"gradients": [], "passes": []})
    updater.settings = replace(updater.settings, passes=1)
    batch = token_batch(step)
    prepared, _ = updater.prepare(batch, feedback(step, batch.layout))
    return updater.update(0, batch, prepared).metrics["grad_norm"]


def test_half_the_weight_is_half_the_gradient_and_none_is_none() -> None:
    whole = gradient_norm(groups(0))
    assert whole > 1e-3
    assert gradient_norm(weighted(1.0)) == pytest.approx(whole, rel=1e-12)
    assert gradient_norm(weighted(0.5)) == pytest.approx(whole / 2, rel=1e-6)
    assert gradient_norm(weighted(0.0)) == 0.0
