"""Parts of a decoder whose backward pass is written out, for fewer passes over memory than autograd's and fewer stored states.

    RMSNorm:    y = x r w             r = 1 / sqrt(mean(x²) + ε)
                dx = r (g w) - x r³ mean(g w x)          dw = Σ_t g x r
    gated MLP:  y = (silu(G x) · U x) Dᵀ, in chunks of rows that stay in the cache of a CPU

Both are taken for plain weights in float32 or float64, computed in that type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers.activations import SiLUActivation

if TYPE_CHECKING:
    from jaxtyping import Float

CACHED_STATES = 2**19
"""Inner states of a chunk of an MLP on a CPU: 2 MiB in float32."""
_TYPES = (torch.float32, torch.float64)


def rms_norm(
    x: Float[Tensor, "*tokens size"], weight: Float[Tensor, " size"], epsilon: float
) -> Float[Tensor, "*tokens size"]:
    """x / sqrt(mean(x²) + ε) · weight."""
    if not torch.is_grad_enabled():
        return F.rms_norm(x, weight.shape, weight, epsilon)
    found: Tensor = _RMSNorm.apply(x, weight, epsilon)  # type: ignore[no-untyped-call]
    return found


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = size.square_().mul_(1.0 / x.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return torch.mul(x, inverse).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, inverse = ctx.saved_tensors
        product = gradient * x
        to_weight = None
        if ctx.needs_input_grad[1]:
            to_weight = inverse.flatten() @ product.flatten(0, -2)
        if not ctx.needs_input_grad[0]:
            return None, to_weight, None
        shared = (product @ weight)[..., None].mul_(inverse**3).mul_(-1.0 / x.shape[-1])
        return torch.mul(gradient, weight).mul_(inverse).addcmul_(x, shared), to_weight, None


def takes_mlp(x: Tensor, mlp: Any) -> bool:
    """Whether `gated_mlp` computes what an MLP does: SiLU, and plain linear layers without bias of the type of `x`."""
    layers = [getattr(mlp, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    return (
        x.dtype in _TYPES
        and all(type(layer) is nn.Linear and layer.bias is None and layer.weight.dtype is x.dtype for layer in layers)
        and isinstance(mlp.act_fn, nn.SiLU | SiLUActivation)
        and not torch.is_autocast_enabled(x.device.type)
    )


def gated_mlp(x: Float[Tensor, "tokens hidden"], mlp: Any) -> Float[Tensor, "tokens hidden"]:
    """What an MLP that `takes_mlp` says yes to computes."""
    found: Tensor = _GatedMLP.apply(  # type: ignore[no-untyped-call]
        x, mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight
    )
    return found


class _GatedMLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        rows = max(1, CACHED_STATES // gate.shape[0]) if x.is_cpu else len(x)
        y = x.new_empty(len(x), down.shape[0])
        states = []
        for part, into in zip(x.split(rows), y.split(rows), strict=True):
            gated, raised = part @ gate.t(), part @ up.t()
            torch.mm(F.silu(gated).mul_(raised), down.t(), out=into)
            states += [gated, raised]
        ctx.rows = rows
        ctx.save_for_backward(x, gate, up, down, *states)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, up, down, *states = ctx.saved_tensors
        needed = ctx.needs_input_grad
        to_x = torch.empty_like(x) if needed[0] else None
        weights = [torch.zeros_like(w) if need else None for w, need in zip((gate, up, down), needed[1:], strict=True)]
        for number, (part, given) in enumerate(zip(x.split(ctx.rows), gradient.split(ctx.rows), strict=True)):
            gated, raised = states[2 * number : 2 * number + 2]
            active, inner = F.silu(gated), given @ down
            _add(weights[2], given, active * raised)
            to_gated = torch.ops.aten.silu_backward(inner * raised, gated)
            to_raised = inner.mul_(active)
            _add(weights[0], to_gated, part)
            _add(weights[1], to_raised, part)
            if to_x is not None:
                at = slice(number * ctx.rows, number * ctx.rows + len(part))
                to_x[at] = (to_gated @ gate).add_(to_raised @ up)
        return to_x, *weights


def _add(into: Tensor | None, left: Tensor, right: Tensor) -> None:
    if into is not None:
        into += left.t() @ right
