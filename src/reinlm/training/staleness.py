"""How old sampled tokens are, by the policy versions that they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reinlm.batches import TokenBatch
from reinlm.records import UNKNOWN_VERSION, ScoredGroup

if TYPE_CHECKING:
    from jaxtyping import Bool


def stale_tokens(batch: TokenBatch, updates: int) -> Bool[Tensor, " tokens"]:
    """Which tokens an earlier version of the policy chose than the one after `updates` updates; none
    whose version is unknown."""
    version = batch.columns.get("version")
    if version is None:
        return torch.zeros(batch.tokens, dtype=torch.bool)
    return (version != UNKNOWN_VERSION) & (version < updates)


def staleness_metrics(batch: TokenBatch, updates: int) -> dict[str, float]:
    """How many updates ago the tokens of a batch were chosen."""
    version = batch.columns.get("version")
    known = torch.zeros(0) if version is None else version[version != UNKNOWN_VERSION]
    if not len(known):
        return {}
    age = (updates - known).double()
    return {"staleness/mean": float(age.mean()), "staleness/max": float(age.max())}


def oldest_version(group: ScoredGroup) -> int:
    """The policy version of a group's oldest token: optimizer steps made before it. 0 where no token has a version."""
    known = [rollout.versions for rollout in group.group.rollouts]
    return min((versions[0] for versions in known if versions is not None), default=0)
