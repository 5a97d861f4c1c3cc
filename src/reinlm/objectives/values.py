"""The critic's loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float


def value_loss(
    values: Float[Tensor, "*shape"],
    returns: Float[Tensor, "*shape"],
    old_values: Float[Tensor, "*shape"] | None = None,
    clip: float | None = None,
) -> Float[Tensor, "*shape"]:
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
