"""Copies of a decoder's matrices that products with few rows read fast, for as long as nothing updates the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import SiLUActivation

from reinlm.models.matmul import MIN_MATRIX, current_backend, onednn_linear, onednn_linear_with, packed


class PreparedLayer:
    """Copies of the matrices of a layer of `LlamaForward`, with the weights of the norms before them multiplied in.

    Args:
        layer: whose projections are plain linear layers.
    """

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        joined = (attention.q_proj, attention.k_proj, attention.v_proj)
        self._size = attention.head_dim
        self._counts = [project.out_features // self._size for project in joined]
        self._norm = _Normalized(layer.input_layernorm)
        self._joined = PackedLinear(*joined, scale=layer.input_layernorm.weight)
        self.out = PackedLinear(attention.o_proj)
        self._scale: Tensor | None = None
        if (norm := getattr(attention, "q_norm", None)) is not None:
            scales = (norm.weight.detach(), attention.k_norm.weight.detach())
            self._scale = torch.cat([x.expand(n, -1) for x, n in zip(scales, self._counts, strict=False)])
            self._norm_of_heads = _Normalized(norm)
        self.mlp = PreparedMLP(mlp, layer.post_attention_layernorm) if PreparedMLP.takes(mlp) else None

    @classmethod
    def of(cls, layer: Any) -> PreparedLayer | None:
        """None for a layer with other projections than linear layers, such as adapters, or in another type than float32, whose
        norms transformers computes in float32."""
        own = layer.self_attn
        projections = [own.q_proj, own.k_proj, own.v_proj, own.o_proj]
        norms = [layer.input_layernorm, layer.post_attention_layernorm]
        norms += [norm for name in ("q_norm", "k_norm") if (norm := getattr(own, name, None)) is not None]
        alike = len({part.weight.dtype for part in projections + norms}) == 1
        return cls(layer) if alike and PackedLinear.takes(*projections) else None

    def heads(self, x: Tensor, cos: Tensor, sin: Tensor) -> Sequence[Tensor]:
        """Query, key and value [T, heads, size] of the inputs [T, H] of the layer. Query and key are rotated together."""
        queries, keys, _ = self._counts
        states = self._joined(self._norm(x)).unflatten(-1, (-1, self._size))
        asked = states[:, : queries + keys]
        if self._scale is not None:
            asked = self._norm_of_heads(asked).mul_(self._scale)
        asked = rotate(asked, cos, sin, sin.shape[-1] // 2)
        return asked[:, :queries], asked[:, queries:], states[:, queries + keys :]


class PreparedMLP:
    """x + mlp(norm(x)) for a gated MLP, from copies of its matrices."""

    def __init__(self, mlp: Any, norm: Any) -> None:
        self._norm = _Normalized(norm)
        self._gate, self._up = (PackedLinear(layer, scale=norm.weight) for layer in (mlp.gate_proj, mlp.up_proj))
        self._down = PackedLinear(mlp.down_proj)

    @classmethod
    def takes(cls, mlp: Any) -> bool:
        """Whether it is such an MLP: with plain linear layers and SiLU."""
        layers = [getattr(mlp, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
        return PackedLinear.takes(*layers) and isinstance(mlp.act_fn, nn.SiLU | SiLUActivation)

    def __call__(self, x: Tensor) -> Tensor:
        y = self._norm(x)
        return self._down.added(self._up.times(y, self._gate.silu(y)), x)


class _Normalized:
    """An RMSNorm without its weights, in fewer operations than torch's."""

    def __init__(self, norm: Any) -> None:
        self._epsilon = torch.full((), norm.variance_epsilon, dtype=norm.weight.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * torch.addcmul(self._epsilon, size, size, value=1 / x.shape[-1]).rsqrt_()


class PackedLinear:
    """The product with the matrix of a linear layer, or with those of several side by side, from a copy that is read fast: as
    oneDNN lays it out, or, where the BLAS computes products, transposed.

    Args:
        scale: [K] factors of the inputs, such as the weights of a norm before it.
    """

    def __init__(self, *layers: Any, scale: Tensor | None = None) -> None:
        weights = [layer.weight.detach() for layer in layers]
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        weight = weight if scale is None else weight * scale.detach()
        self._bias = torch.cat(biases) if len(biases) > 1 else biases[0] if biases else None
        self._onednn = current_backend() == "onednn" and weight.numel() >= MIN_MATRIX
        self._weight = packed(weight) if self._onednn else weight.t().contiguous().t()

    @classmethod
    def takes(cls, *layers: Any) -> bool:
        """Whether these are plain linear layers on a CPU, all with a bias or none, in float32."""
        return (
            all(type(layer) is nn.Linear and layer.weight.is_cpu for layer in layers)
            and len({layer.bias is None for layer in layers}) == 1
            and all(layer.weight.dtype is torch.float32 for layer in layers)
            and not torch.is_autocast_enabled("cpu")
        )

    def __call__(self, x: Tensor) -> Tensor:
        if not self._onednn:
            return F.linear(x, self._weight, self._bias)
        return onednn_linear(x, self._weight, self._bias)

    def silu(self, x: Tensor) -> Tensor:
        """SiLU of the product."""
        if not self._onednn:
            return F.silu(F.linear(x, self._weight, self._bias), inplace=True)
        return onednn_linear(x, self._weight, self._bias, "swish")

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """The product, times `other`."""
        if not self._onednn:
            return F.linear(x, self._weight, self._bias).mul_(other)
        return onednn_linear_with(x, other, self._weight, self._bias, "mul")

    def added(self, x: Tensor, other: Tensor) -> Tensor:
        """The product, plus `other`."""
        if not self._onednn:
            return F.linear(x, self._weight, self._bias).add_(other)
        return onednn_linear_with(x, other, self._weight, self._bias, "add")


def rotate(x: Tensor, cos: Tensor, sin: Tensor, half: int) -> Tensor:
    """x · cos + (x with its halves exchanged) · sin, where the first half of `sin` is negative."""
    return (x * cos).add_(x.roll(half, -1) * sin)
