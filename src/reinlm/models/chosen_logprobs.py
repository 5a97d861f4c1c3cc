"""Log-probabilities of chosen tokens straight from hidden states, chunk by chunk, forward and backward.

    logprob_t = z_t[token_t] - log Σ_v exp z_tv        z_t = (W h_t + b) / temperature_t

The gradient needs the distribution again, and is written into that of a chunk, which is made again for it:

    dz_tv = g_t (1[v = token_t] - p_tv) - e_t p_tv (log p_tv + H_t)

with the gradients g of the log-probabilities and e of the entropies H. Only one [chunk, vocabulary] tensor and its
exponentials exist at a time, small enough on a CPU to stay in its cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from reinlm.objectives import full_entropy

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

CACHED_ELEMENTS = 2**21
"""Logits of a chunk on the CPU: 8 MiB in float32."""
_IMPOSSIBLE = -1e4
"""A log-probability whose exponential is 0 in every type, and whose products with gradients stay finite."""


def is_plain(head: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a head is a linear layer and nothing else: no adapter, no hook, not sharded."""
    hooks = (head._forward_hooks, head._forward_pre_hooks, head._backward_hooks, head._backward_pre_hooks)
    hooked = any(hooks)
    return type(head) is nn.Linear and not hooked and not hasattr(head.weight, "full_tensor")


def chosen_logprobs(
    hidden: Float[Tensor, " tokens hidden"],
    head: nn.Linear,
    targets: Int[Tensor, " tokens"],
    temperature: Float[Tensor, " tokens"] | None,
    *,
    size: int,
    entropy: bool,
) -> tuple[Float[Tensor, " tokens"], Float[Tensor, " tokens"] | None, Bool[Tensor, " tokens"] | None]:
    """Log-probabilities of `targets`; with `entropy` also the entropies in nats, and whether each target is the likeliest.

    Computed under the caller's autocast; sums over the vocabulary are float32, or float64 of a float64 model.

    Args:
        size: tokens of a chunk.
    """
    device = hidden.device.type
    lower = torch.is_autocast_enabled(device) and hidden.dtype != torch.float64
    computed = torch.get_autocast_dtype(device) if lower else hidden.dtype
    found = _Chosen.apply(  # type: ignore[no-untyped-call]
        hidden, head.weight, head.bias, targets, temperature, size, entropy, computed
    )
    logprobs, entropies, likeliest = found
    return (logprobs, entropies, likeliest) if entropy else (logprobs, None, None)


class _Chosen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: Tensor | None,
        size: int,
        entropy: bool,
        computed: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.float64 if computed == torch.float64 else torch.float32
        logprobs = hidden.new_empty(len(hidden), dtype=wide)
        entropies = torch.empty_like(logprobs)
        likeliest = torch.empty_like(logprobs, dtype=torch.bool)
        logits = _Logits(hidden, weight, bias, temperature, computed)
        for part in _parts(len(hidden), size):
            every = logits.of(part).log_softmax(-1)
            chosen = every.gather(-1, targets[part, None])
            logprobs[part] = chosen[:, 0]
            if entropy:
                likeliest[part] = (chosen >= every.amax(-1, keepdim=True))[:, 0]
                entropies[part] = full_entropy(every)
        ctx.save_for_backward(hidden, weight, bias, targets, temperature, entropies)
        ctx.size, ctx.computed = size, computed
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*([likeliest] if entropy else [likeliest, entropies]))
        return logprobs, entropies, likeliest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, temperature, entropies = ctx.saved_tensors
        of_logprobs, of_entropies, _ = gradients
        needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        to_hidden = torch.empty_like(hidden) if needs_hidden else None
        to_weight = torch.zeros_like(weight) if needs_weight else None
        to_bias = torch.zeros_like(bias) if needs_bias and bias is not None else None
        logits = _Logits(hidden, weight, bias, temperature, ctx.computed)
        for part in _parts(len(hidden), ctx.size):
            every = logits.of(part).log_softmax(-1)
            factor: Tensor | float = 0.0 if of_logprobs is None else -of_logprobs[part, None]
            if of_entropies is not None:
                every.clamp_(min=_IMPOSSIBLE)
                factor = factor - (every + entropies[part, None]).mul_(of_entropies[part, None])
            slope = every.exp_().mul_(factor)
            if of_logprobs is not None:
                slope.scatter_add_(-1, targets[part, None], of_logprobs[part, None])
            if temperature is not None:
                slope /= temperature[part, None].to(slope.dtype)
            slope = slope.to(ctx.computed)
            if to_hidden is not None:
                to_hidden[part] = slope @ logits.weight
            if to_weight is not None:
                _add_product(to_weight, slope.T, logits.hidden[part])
            if to_bias is not None:
                to_bias += slope.sum(0)
        return to_hidden, to_weight, to_bias, None, None, None, None, None


class _Logits:
    """The logits of a chunk, made when they are asked for, without autocast."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: Tensor | None, computed: torch.dtype
    ) -> None:
        self.hidden, self.weight = hidden.to(computed), weight.to(computed)
        self._bias = None if bias is None else bias.to(computed)
        self._temperature = temperature
        self._device = hidden.device.type

    def of(self, part: slice) -> Tensor:
        """[C, V] in float32 or float64; the caller may write into them."""
        with torch.autocast(self._device, enabled=False):
            raw = F.linear(self.hidden[part], self.weight, self._bias)
        z = raw if raw.dtype == torch.float64 else raw.float()
        return z if self._temperature is None else z.div_(self._temperature[part, None].to(z.dtype))


def _add_product(into: Tensor, left: Tensor, right: Tensor) -> None:
    if into.dtype == left.dtype:
        into.addmm_(left, right)
    else:
        into += left @ right


def _parts(count: int, size: int) -> list[slice]:
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]
