"""The value loss, explained variance, and the choice `Critic`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reinlm.objectives.registry import choice

if TYPE_CHECKING:
    from jaxtyping import Float


def value_loss(
    values: Float[Tensor, " *shape"],
    returns: Float[Tensor, " *shape"],
    old_values: Float[Tensor, " *shape"] | None = None,
    clip: float | None = None,
) -> Float[Tensor, " *shape"]:
    """½ · max( (V - R)², (V_old + clamp(V - V_old, ±clip) - R)² ), per item; without `clip` ½ (V - R)².

    `returns` and `old_values` are constants. The gradient is 0 where the clipped branch is the larger one and at its bound.
    Clipping comes from the code of arXiv 1707.06347, not its text. Raises ValueError for a clip ≤ 0 or without old values.
    """
    plain = (values - returns).square()
    if clip is None:
        return plain / 2.0
    if old_values is None or clip <= 0.0:
        raise ValueError(f"value clipping needs old_values and a clip above 0, not {clip}")
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(plain, (clipped - returns).square()) / 2.0


def explained_variance(values: Float[Tensor, " items"], returns: Float[Tensor, " items"]) -> Float[Tensor, ""]:
    """1 - Var(R - V) / Var(R): 1 for perfect values, 0 for a constant, negative for worse. NaN where all returns are equal."""
    spread = returns.var(correction=0) if returns.numel() else returns.new_zeros(())
    if float(spread) == 0.0:
        return returns.new_full((), torch.nan)
    return 1.0 - (returns - values).var(correction=0) / spread


@choice("critic", "critic")
@dataclass(frozen=True)
class Critic:
    """The loss of the critic: + coefficient · value loss, weighed as the policy's tokens are."""

    clip: float | None = 0.2
    """A value moves at most this far in one update before its gradient ends; None: no clip."""
    coefficient: float = 0.5
    """More than 0: its share where policy and critic have one backbone; a plain factor where they do not."""

    def __post_init__(self) -> None:
        if self.clip is not None and not self.clip > 0.0:
            raise ValueError(f"critic: clip must be more than 0, or none; not {self.clip}")
        if not 0.0 < self.coefficient < float("inf"):
            raise ValueError(f"critic: the coefficient must be more than 0 and finite, not {self.coefficient}")
