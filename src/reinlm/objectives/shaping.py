"""Changes to a reward that depend on the answer alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


def soft_overlong_penalty(lengths: Int[Tensor, " episodes"], max_length: int, cache: int) -> Float[Tensor, " episodes"]:
    """The soft overlong punishment of DAPO, arXiv 2503.14476 eq. 13, in [-1, 0]; float64.

    0 up to max_length - cache tokens, then down linearly to -1 at max_length, and -1 beyond. A cache of 0 is a cliff:
    0 up to max_length, -1 beyond. Raises ValueError unless 0 ≤ cache ≤ max_length.
    """
    if not 0 <= cache <= max_length:
        raise ValueError(f"soft overlong: cache must be between 0 and max_length ({max_length}), not {cache}")
    exceed = (lengths - (max_length - cache)).double()
    if cache == 0:
        return -(exceed > 0).double()
    return -(exceed / cache).clamp(0.0, 1.0)


def missing_end_penalty(truncated: Bool[Tensor, " episodes"], penalty: float) -> Float[Tensor, " episodes"]:
    """-penalty for an answer that a limit cut off before its stop token, else 0; float64. Raises ValueError for penalty ≤ 0."""
    if not 0.0 < penalty < float("inf"):
        raise ValueError(f"missing end: the penalty must be more than 0 and finite, not {penalty}")
    return -penalty * truncated.double()
