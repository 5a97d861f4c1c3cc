"""Many walks through a world at once, drawn from its model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reinlm.classical.tabular.model import Model


@dataclass(frozen=True)
class Walks:
    """Steps [T, B], time first. After the end of a walk come rows of reward 0 that are terminated: no return looks at them."""

    states: Tensor
    actions: Tensor
    rewards: Tensor
    following: Tensor
    terminated: Tensor
    alive: Tensor
    """Whether the step was taken, [T, B] bool."""

    @property
    def uncut(self) -> Tensor:
        """All False: none of the steps is truncated."""
        return torch.zeros_like(self.terminated)


def walk(model: Model, policy: Tensor, starts: Tensor, steps: int, generator: torch.Generator) -> Walks:
    """`steps` steps of `policy` [S, A] from each of `starts` [B], or fewer where a walk ends."""
    rows: list[tuple[Tensor, ...]] = []
    state, over = starts, torch.zeros_like(starts, dtype=torch.bool)
    for _ in range(steps):
        action = pick(policy[state], generator)
        outcome = pick(model.probabilities[state, action], generator)
        at = state, action, outcome
        reward = model.rewards[at].masked_fill(over, 0.0)
        terminated = model.terminated[at] | over
        following = torch.where(over, state, model.successors[at])
        rows.append((state, action, reward, following, terminated, ~over))
        state, over = following, terminated
    return Walks(*(torch.stack(column) for column in zip(*rows, strict=True)))


def pick(probabilities: Tensor, generator: torch.Generator) -> Tensor:
    """An index for each row of probabilities [B, K]."""
    drawn = torch.rand(len(probabilities), 1, generator=generator, dtype=torch.float64)
    return (drawn >= probabilities.cumsum(-1)).sum(-1).clamp(max=probabilities.shape[-1] - 1)
