"""A forward pass for sampling, on one row of tokens: the common decoders without what only training needs.

`row_forward` reads the weights of a Hugging Face model where they are, so it follows every update. Its projections are the
model's own modules, adapters included; norms and rotary embeddings are fused, and nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from reinlm.models.heads import close, probe, quietly, split_head, supports_sharing
from reinlm.models.prefix_sharing import share_prefixes
from reinlm.models.row_attention import RowAttention, attended_by

if TYPE_CHECKING:
    from jaxtyping import Float, Int

RowForward = Callable[["Int[Tensor, ' row']", "Int[Tensor, ' row']", RowAttention], "Float[Tensor, ' row hidden']"]
"""(token ids [T], positions [T], attention) -> hidden states [T, H], for the head."""


def row_forward(model: nn.Module) -> RowForward | None:
    """The fastest forward pass on a row that computes what the model does; None where it takes no `RowAttention`.

    A model that is sharded goes through its own forward pass, which gathers its weights.
    """
    if not supports_sharing(model):
        return None
    own = BackboneForward(split_head(model).backbone)
    if any(hasattr(weight, "full_tensor") for weight in model.parameters()):
        return own
    return _lean(model, own) or own


@dataclass(frozen=True)
class LayerSettings:
    """What a layer of the model asks of attention; see `RowAttention`."""

    scaling: float | None
    window: int | None


class BackboneForward:
    """The model's own forward pass."""

    def __init__(self, backbone: nn.Module) -> None:
        self._backbone = backbone

    def __call__(self, ids: Tensor, positions: Tensor, attention: RowAttention) -> Tensor:
        """As `RowForward`."""
        states: Tensor = self._backbone(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, **attended_by(attention, ids.device)
        )[0]
        return states[0]


class LlamaForward:
    """Llama, Mistral, Qwen2, Qwen3 and their mixtures of experts: RMSNorm, rotary positions, gated MLP."""

    def __init__(self, backbone: Any, settings: Sequence[LayerSettings]) -> None:
        self._backbone = backbone
        self._settings = settings

    def __call__(self, ids: Tensor, positions: Tensor, attention: RowAttention) -> Tensor:
        """As `RowForward`."""
        backbone = self._backbone
        x = backbone.embed_tokens(ids)
        cos, sin = backbone.rotary_emb(x, positions[None])
        cos, sin = cos[0, :, None], sin[0, :, None]
        half = sin.shape[-1] // 2
        sin = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
        for number, (layer, asked) in enumerate(zip(backbone.layers, self._settings, strict=True)):
            own = layer.self_attn
            y = _rms_norm(layer.input_layernorm, x)
            query, key, value = (
                project(y).unflatten(-1, (-1, own.head_dim)) for project in (own.q_proj, own.k_proj, own.v_proj)
            )
            if (norm := getattr(own, "q_norm", None)) is not None:
                query, key = _rms_norm(norm, query), _rms_norm(own.k_norm, key)
            query, key = (_rotate(z, cos, sin, half) for z in (query, key))
            query, key, value = (z.transpose(0, 1)[None] for z in (query, key, value))
            x = x + own.o_proj(attention(number, query, key, value, asked.scaling, asked.window)[0].flatten(1))
            y = layer.mlp(_rms_norm(layer.post_attention_layernorm, x)[None])
            x = x + (y[0] if isinstance(y, tuple) else y)[0]
        return _rms_norm(backbone.norm, x)


class GPT2Forward:
    """GPT-2: LayerNorm, learned positions, one projection for query, key and value."""

    def __init__(self, backbone: Any, settings: Sequence[LayerSettings]) -> None:
        self._backbone = backbone
        self._settings = settings

    def __call__(self, ids: Tensor, positions: Tensor, attention: RowAttention) -> Tensor:
        """As `RowForward`."""
        backbone = self._backbone
        x = backbone.wte(ids) + backbone.wpe(positions)
        for number, (layer, asked) in enumerate(zip(backbone.h, self._settings, strict=True)):
            own = layer.attn
            parts = own.c_attn(layer.ln_1(x)).split(own.split_size, dim=-1)
            query, key, value = (part.unflatten(-1, (-1, own.head_dim)).transpose(0, 1)[None] for part in parts)
            x = x + own.c_proj(attention(number, query, key, value, asked.scaling, asked.window)[0].flatten(1))
            x = x + layer.mlp(layer.ln_2(x))
        found: Tensor = backbone.ln_f(x)
        return found


def _rms_norm(norm: Any, x: Tensor) -> Tensor:
    if x.dtype != norm.weight.dtype:  # as under autocast: what comes out has the type that transformers gives it
        return norm(x)  # type: ignore[no-any-return]
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=_wide(x.dtype))
    scale = size.square_().mul_(1.0 / x.shape[-1]).add_(norm.variance_epsilon).rsqrt_()
    normal: Tensor = (x * scale).to(x.dtype).mul_(norm.weight)
    return normal


def _wide(dtype: torch.dtype) -> torch.dtype | None:
    """The type of sums over numbers of half precision; None for their own."""
    return torch.float32 if torch.finfo(dtype).bits < 32 else None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, half: int) -> Tensor:
    """x · cos + (x with its halves exchanged) · sin, where the first half of `sin` is negative."""
    return (x * cos).addcmul_(x.roll(half, -1), sin)


_FORWARDS: tuple[tuple[type[LlamaForward | GPT2Forward], tuple[str, ...], tuple[str, ...]], ...] = (
    (
        LlamaForward,
        ("embed_tokens", "rotary_emb", "norm", "layers"),
        (
            "input_layernorm",
            "self_attn.q_proj",
            "self_attn.o_proj",
            "self_attn.scaling",
            "post_attention_layernorm",
            "mlp",
        ),
    ),
    (GPT2Forward, ("wte", "wpe", "ln_f", "h"), ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp")),
)
"""Each with the modules that a backbone, and each of its layers, has to have."""


def _lean(model: nn.Module, own: BackboneForward) -> RowForward | None:
    """A lean forward pass, if the model has its modules and both compute the same on a few tokens."""
    split = split_head(model)
    backbone: Any = split.backbone
    kind = next((kind for kind, outer, inner in _FORWARDS if _has_modules(backbone, outer, inner)), None)
    if kind is None:
        return None
    with quietly(model):
        ids = probe(model)[0]
        row = share_prefixes([ids.cpu().numpy()])
        tree, positions = row.tree(ids.device), torch.from_numpy(row.positions).to(ids.device)
        settings: list[LayerSettings] = []

        def recording(
            layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
        ) -> Tensor:
            settings.append(LayerSettings(scaling, window))
            return tree(layer, query, key, value, scaling, window)

        expected = split.logits(own(ids, positions, recording))
        lean = kind(backbone, settings)
        try:
            found = lean(ids, positions, tree)
        except (AttributeError, TypeError, ValueError, RuntimeError):  # it uses its modules in another way
            return None
        rounding = 1e-4 if torch.finfo(found.dtype).bits >= 32 else 0.05
        return lean if close(split.logits(found), expected, found.dtype, rounding) else None


def _has_modules(backbone: Any, outer: Sequence[str], inner: Sequence[str]) -> bool:
    if not all(hasattr(backbone, name) for name in outer):
        return False
    return all(_has(layer, path) for layer in getattr(backbone, outer[-1]) for path in inner)


def _has(module: Any, path: str) -> bool:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module is not None
