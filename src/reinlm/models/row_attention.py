"""A Hugging Face backbone on one row of tokens, with attention that the caller gives.

Everything but attention treats each token alone, so tokens of many sequences can go through a backbone side by side,
without padding, where the caller says which of them attend to which: `PrefixTree` in training, the engine's cache in
sampling. Transformers' registry of attention functions is where it takes over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from reinlm.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float

_KEYWORD = "row_attention"


@dataclass(frozen=True)
class LayerSettings:
    """What a layer of a model asks of attention."""

    scaling: float | None = None
    """Of the products of query and key; None for 1 / sqrt(size)."""
    window: int | None = None
    """Tokens that a token attends to at most, itself included; None for all before it."""
    dropout: float = 0.0
    """Share of the attention weights that is set to 0, in training mode."""


class RowAttention(Protocol):
    """Attention of one layer, by its number from 0, on a row of T tokens: the attention's output at every token."""

    def __call__(
        self,
        layer: int,
        query: Float[Tensor, "1 heads row size"],
        key: Float[Tensor, "1 kv_heads row size"],
        value: Float[Tensor, "1 kv_heads row size"],
        settings: LayerSettings,
    ) -> Float[Tensor, "1 row heads size"]: ...


class RecordedAttention:
    """A `RowAttention` that notes what each layer asks for, in `layers`."""

    def __init__(self, attention: RowAttention) -> None:
        self.layers: list[LayerSettings] = []
        self._attention = attention

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, settings: LayerSettings) -> Tensor:
        """As `RowAttention`."""
        self.layers.append(settings)
        return self._attention(layer, query, key, value, settings)


def attended_by(attention: RowAttention, device: torch.device) -> dict[str, Any]:
    """What a backbone is given beside tokens and positions: the attention, and a mask so that it makes none itself."""
    return {_KEYWORD: attention, "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)}


def check_sdpa(backbone: Any) -> None:
    """Raise InputError where the attention of a model was changed since it was found to take a `RowAttention`."""
    found = backbone.config._attn_implementation
    if found != "sdpa":
        raise InputError(
            f"the attention of {type(backbone).__name__} was changed to {found!r}, which takes no rows",
            hint="set it before the model is given to reinlm, or set it back to 'sdpa'",
        )


def as_computed(*states: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys or values in the type that attention computes in: that of autocast, where it is on."""
    device = states[0].device.type
    if not torch.is_autocast_enabled(device) or states[0].dtype == torch.float64:
        return states
    return tuple(x.to(torch.get_autocast_dtype(device)) for x in states)


def install() -> None:
    """Let transformers' SDPA attention hand over to a `RowAttention` where a backbone is called with one."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
    if hasattr(plain, _KEYWORD):
        return

    def sdpa_attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        attention: RowAttention | None = kwargs.pop(_KEYWORD, None)
        if attention is None:
            found: tuple[Tensor, Tensor | None] = plain(module, query, key, value, attention_mask, **kwargs)
            return found
        settings = LayerSettings(kwargs.get("scaling"), kwargs.get("sliding_window"), kwargs.get("dropout") or 0.0)
        return attention(module.layer_idx, query, key, value, settings), None

    setattr(sdpa_attention, _KEYWORD, True)
    ALL_ATTENTION_FUNCTIONS["sdpa"] = sdpa_attention
