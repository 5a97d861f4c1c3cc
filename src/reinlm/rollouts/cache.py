"""The key-value cache of running answers, whose rows can be added, dropped and repeated.

Every row is padded on the left, so all rows grow in the same column and a row's tokens stand side by side. Distances
between columns are then distances between positions, so sliding-window masks stay right on plain layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from reinlm.errors import InputError

_SPARE = 64  # columns of room made at once, so that a token costs a write and not a copy of everything


class GrowingLayer(DynamicLayer):
    """Keys and values [rows, heads, columns, head size] in buffers with room to grow."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self._key_buffer, self._value_buffer = self.keys, self.values
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append columns; returns all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        width = self.get_seq_length()
        self._key_buffer, self.keys = _append(self._key_buffer, width, key_states)
        self._value_buffer, self.values = _append(self._value_buffer, width, value_states)
        return self.keys, self.values


class RowCache(DynamicCache):
    """A cache of growing layers, made as the model asks for them."""

    def __init__(self) -> None:
        Cache.__init__(self, layer_class_to_replicate=GrowingLayer)

    @property
    def width(self) -> int:
        """Columns held, padding included."""
        return int(self.get_seq_length())


@dataclass(frozen=True)
class Part:
    """Rows taken from a cache: which ones (an index may repeat), without its first `skip` columns."""

    cache: RowCache
    rows: Tensor
    skip: int = 0

    @property
    def width(self) -> int:
        """Columns that are left."""
        return self.cache.width - self.skip


def assemble(parts: Sequence[Part]) -> RowCache:
    """One cache out of rows of several, padded on the left to the widest part.

    It makes every change of rows: dropping rows, repeating a prompt for its samples, joining new rows to running
    ones, and removing columns that are padding everywhere.
    """
    width = max(part.width for part in parts)
    joined = RowCache()
    for index in range(len(parts[0].cache.layers)):
        layer = GrowingLayer()
        layers: list[Any] = [part.cache.layers[index] for part in parts]
        layer.lazy_initialization(layers[0].keys, layers[0].values)
        layer._key_buffer, layer.keys = _stack([x.keys for x in layers], parts, width)
        layer._value_buffer, layer.values = _stack([x.values for x in layers], parts, width)
        joined.layers.append(layer)
    return joined


def check_supported(config: Any) -> None:
    """Refuse a model whose state is more than keys and values of the tokens.

    Linear attention, layers that share or compress keys, and chunked attention are such; InputError names them.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(f"{config.model_type} is an encoder-decoder", hint="the engine samples from decoders")
    config = config.get_text_config(decoder=True)
    kinds = {type(layer) for layer in DynamicCache(config=config).layers} - {DynamicLayer, DynamicSlidingWindowLayer}
    chunked = "chunked_attention" in (getattr(config, "layer_types", None) or ())
    if kinds or chunked:
        names = sorted(kind.__name__ for kind in kinds) or ["chunked attention"]
        raise InputError(
            f"{config.model_type} keeps state that the in-process engine cannot handle: {', '.join(names)}",
            hint="models with full or sliding-window attention in every layer are supported",
        )


def _append(buffer: Tensor, width: int, new: Tensor) -> tuple[Tensor, Tensor]:
    """Write `new` behind the first `width` columns; the buffer, grown if it was full, and the view in use."""
    total = width + new.shape[-2]
    if total > buffer.shape[-2]:
        old, buffer = buffer, _room(buffer, buffer.shape[0], total)
        buffer[:, :, :width] = old[:, :, :width]
    buffer[:, :, width:total] = new
    return buffer, buffer[:, :, :total]


def _stack(sources: Sequence[Tensor], parts: Sequence[Part], width: int) -> tuple[Tensor, Tensor]:
    buffer = _room(sources[0], sum(part.rows.shape[0] for part in parts), width)
    first = 0
    for source, part in zip(sources, parts, strict=True):
        block = buffer[first : first + part.rows.shape[0]]
        pad = width - part.width
        block[:, :, :pad] = 0  # never left as it was allocated: masked, but a NaN there would still spread
        block[:, :, pad:width] = source[:, :, part.skip :].index_select(0, part.rows)
        first += part.rows.shape[0]
    return buffer, buffer[:, :, :width]


def _room(like: Tensor, rows: int, width: int) -> Tensor:
    return like.new_empty((rows, like.shape[1], width + _SPARE, like.shape[3]))
