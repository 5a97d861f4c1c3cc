"""An upper bound on the mean of a reward, enforced by a Lagrange multiplier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reinlm.objectives.registry import choice

if TYPE_CHECKING:
    from jaxtyping import Float


@choice("constraint", "lagrange")
@dataclass(frozen=True)
class Lagrange:
    """E[c] ≤ limit for the reward named `reward`, whose values c count as costs; give it weight 0 to be a constraint alone.

        R ← (R - λ c) / (1 + λ),    after each batch    λ ← max(0, λ + rate · (mean c - limit))

    The division keeps the size of the reward as λ grows. Dual ascent on the constrained problem: Altman (1999), Constrained
    Markov Decision Processes; as here in Ray, Achiam & Amodei (2019), Benchmarking Safe Exploration.
    """

    reward: str
    """Name of the reward function that gives c."""
    limit: float
    """d, in units of that reward."""
    multiplier: float = 0.0
    """λ of the first batch; at least 0."""
    rate: float = 0.1
    """η; more than 0."""

    def __post_init__(self) -> None:
        if not self.reward:
            raise ValueError("lagrange: name the reward that is bounded")
        if not abs(self.limit) < float("inf"):
            raise ValueError(f"lagrange: the limit must be finite, not {self.limit}")
        if not 0.0 <= self.multiplier < float("inf"):
            raise ValueError(f"lagrange: the multiplier must be at least 0 and finite, not {self.multiplier}")
        if not 0.0 < self.rate < float("inf"):
            raise ValueError(f"lagrange: the rate must be more than 0 and finite, not {self.rate}")

    def advance(self, multiplier: float, cost: float) -> float:
        """The multiplier of the next batch, given the mean cost of this one."""
        return max(0.0, multiplier + self.rate * (cost - self.limit))


def penalize(
    rewards: Float[Tensor, " episodes"],
    costs: Sequence[Float[Tensor, " episodes"]],
    multipliers: Sequence[float],
) -> Float[Tensor, " episodes"]:
    """(R - Σ_k λ_k c_k) / (1 + Σ_k λ_k), for each episode; a cost that is NaN was not given and counts 0."""
    charged = rewards
    for cost, multiplier in zip(costs, multipliers, strict=True):
        charged = charged - multiplier * torch.where(cost.isnan(), 0.0, cost)
    return charged / (1.0 + sum(multipliers))
