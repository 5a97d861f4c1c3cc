"""The step of TRPO, arXiv 1502.05477: conjugate gradient, the full step, and a line search on the measured divergence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Float


def conjugate_gradient(
    product: Callable[[Tensor], Tensor],
    gradient: Float[Tensor, " parameters"],
    iterations: int = 10,
    tolerance: float = 1e-10,
) -> Float[Tensor, " parameters"]:
    """x with F x ≈ gradient, from x = 0, where `product(v)` is F v for a positive definite F (give it its damping).

    Ends early once the squared residual is below `tolerance`; a zero gradient gives exactly 0.
    """
    x = torch.zeros_like(gradient)
    residual = gradient.clone()
    direction = gradient.clone()
    squared = residual.dot(residual)
    for _ in range(iterations):
        if float(squared) <= tolerance:
            break
        image = product(direction)
        length = squared / direction.dot(image)
        x = x + length * direction
        residual = residual - length * image
        following = residual.dot(residual)
        direction = residual + (following / squared) * direction
        squared = following
    return x


def full_step(
    direction: Float[Tensor, " parameters"], image: Float[Tensor, " parameters"], divergence: float
) -> Float[Tensor, " parameters"]:
    """sqrt(2δ / xᵀFx) · x: the longest step along x that the quadratic model of the divergence puts at δ.

    `image` is F x. A direction without curvature gives 0. Raises ValueError for δ ≤ 0.
    """
    if not divergence > 0.0:
        raise ValueError(f"a trust region needs a divergence above 0, not {divergence}")
    curvature = direction.dot(image)
    if not float(curvature) > 0.0:
        return torch.zeros_like(direction)
    return torch.sqrt(2.0 * divergence / curvature) * direction


def line_search(
    attempt: Callable[[Tensor], tuple[float, float]],
    step: Float[Tensor, " parameters"],
    divergence: float,
    backtracks: int = 10,
    shrink: float = 0.8,
) -> Float[Tensor, " parameters"] | None:
    """The first of step · shrink^j, j = 0 … backtracks - 1, that improves within the trust region; None: not one did.

    `attempt(step)` gives (surrogate improvement, measured divergence); one that is not finite is refused.
    """
    for power in range(backtracks):
        shorter = step * shrink**power
        improvement, measured = attempt(shorter)
        if improvement > 0.0 and measured <= divergence:
            return shorter
    return None
