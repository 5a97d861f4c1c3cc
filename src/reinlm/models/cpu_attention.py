"""Attention of the sequences of one row on a CPU: sequence by sequence, some queries at a time, without copies of the states.

A CPU kernel computes what a mask hides as well. So the queries of a sequence come in parts of `QUERIES`, each with the keys up
to its last query alone; what is read and where gradients go are slices of the row.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from reinlm.models.row_attention import LayerSettings

if TYPE_CHECKING:
    from jaxtyping import Float

QUERIES = 128
"""Queries of a sequence in one call."""
KERNEL_COST = 1 << 12
"""What one more call costs, in pairs of query and key."""
_TYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Runs:
    """Where the queries and the keys of a sequence stand in the row.

    Example: queries 3 and 4, keys 0, 1, 3 and 4:
        Runs(3, 5, ((0, 2), (3, 5)))
    """

    start: int
    end: int
    keys: tuple[tuple[int, int], ...]
    """Start and end of every run of keys. The last keys are those of the queries."""

    @classmethod
    def of(cls, own: np.ndarray[Any, Any], path: np.ndarray[Any, Any]) -> Runs:
        """Of the indices of queries, which follow one another, and of keys."""
        breaks = np.flatnonzero(np.diff(path) != 1) + 1
        firsts, lasts = path[np.append(0, breaks)], path[np.append(breaks - 1, len(path) - 1)] + 1
        return cls(int(own[0]), int(own[-1]) + 1, tuple(zip(firsts.tolist(), lasts.tolist(), strict=True)))

    @property
    def length(self) -> int:
        """Keys."""
        return sum(end - start for start, end in self.keys)

    def parts(self) -> Iterator[tuple[int, int, int]]:
        """Start and end of some queries, and how many of the keys they read."""
        shared = self.length - (self.end - self.start)
        for start in range(self.start, self.end, QUERIES):
            end = min(start + QUERIES, self.end)
            yield start, end, shared + end - self.start

    @property
    def cost(self) -> int:
        """Of attention, in pairs of query and key."""
        return sum((end - start) * keys + KERNEL_COST for start, end, keys in self.parts())


def takes_runs(query: Tensor, settings: LayerSettings) -> bool:
    """Whether `attend_runs` computes what a layer asks for."""
    return query.is_cpu and query.dtype in _TYPES and not settings.dropout and has_kernel()


@functools.cache
def has_kernel() -> bool:
    """Whether this PyTorch has the kernel with fewer heads of keys than of queries, which is none of its public functions."""
    query, key = torch.arange(8.0).view(1, 2, 2, 2), torch.ones(1, 1, 2, 2)
    try:
        found, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, key)
        given = (found, query, key, key, found, sums, 0.0, False)
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*given)
    except (AttributeError, RuntimeError, TypeError):
        return False
    expected = F.scaled_dot_product_attention(query, key.expand(1, 2, 2, 2), key.expand(1, 2, 2, 2))
    return torch.allclose(found, expected)


def attend_runs(
    query: Float[Tensor, "1 heads asked size"],
    key: Float[Tensor, "1 kv_heads row size"],
    value: Float[Tensor, "1 kv_heads row size"],
    rows: Sequence[Runs],
    settings: LayerSettings,
) -> Float[Tensor, "1 asked heads size"]:
    """Attention of each sequence's queries to the keys up to themselves, in a sliding window where the layer has one."""
    asked, known, read = (x[0].transpose(0, 1) for x in (query, key, value))
    if torch.is_grad_enabled():
        found: Tensor = _Attention.apply(asked, known, read, rows, settings)  # type: ignore[no-untyped-call]
    else:
        found, _ = _attended(asked, known, read, rows, settings)
    return found[None]


class _Mask:
    """Masks [queries, keys] that are views of one: 0 where a query reads a key, else -inf."""

    def __init__(self, like: Tensor, rows: Sequence[Runs], window: int | None) -> None:
        self._keys = max(row.length for row in rows)
        query = (
            torch.arange(min(QUERIES, self._keys))[:, None] + self._keys
        )  # `_keys` keys stand before the first query
        key = torch.arange(self._keys + len(query))
        seen = key <= query
        if window is not None:
            seen &= key > query - window
        self._whole = like.new_zeros(seen.shape).masked_fill_(~seen, float("-inf"))

    def of(self, queries: int, keys: int) -> Tensor:
        """For queries that are the last of so many keys."""
        first = self._keys - (keys - queries)
        return self._whole[:queries, first : first + keys]


def _joined(states: Tensor, row: Runs) -> Tensor:
    """[keys, heads, size] of a sequence; a view where they follow one another."""
    parts = [states[start:end] for start, end in row.keys]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _heads_first(states: Tensor) -> Tensor:
    return states.transpose(0, 1)[None]


def _attended(
    query: Tensor, key: Tensor, value: Tensor, rows: Sequence[Runs], settings: LayerSettings
) -> tuple[Tensor, list[Tensor]]:
    """What is read [asked, heads, size], and the log-sum-exp of each call's products."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    mask = _Mask(query, rows, settings.window)
    found, sums = torch.empty_like(query, memory_format=torch.contiguous_format), []
    for row in rows:
        keys, values = (_heads_first(_joined(x, row)) for x in (key, value))
        for start, end, read in row.parts():
            states, logarithms = kernel(
                _heads_first(query[start:end]),
                keys[:, :, :read],
                values[:, :, :read],
                attn_mask=mask.of(end - start, read),
                scale=settings.scaling,
            )
            found[start:end] = states[0].transpose(0, 1)
            sums.append(logarithms)
    return found, sums


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, rows: Sequence[Runs], settings: LayerSettings
    ) -> Tensor:
        found, sums = _attended(query, key, value, rows, settings)
        ctx.rows, ctx.settings = rows, settings
        ctx.save_for_backward(query, key, value, found, *sums)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, found, *sums = ctx.saved_tensors
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        mask, calls = _Mask(query, ctx.rows, ctx.settings.window), iter(sums)
        to_query = torch.empty_like(found)
        to_key, to_value = (x.new_zeros(x.shape) for x in (key, value))
        for row in ctx.rows:
            keys, values = (_heads_first(_joined(x, row)) for x in (key, value))
            for start, end, read in row.parts():
                asked, known, seen = kernel(
                    *(_heads_first(x[start:end]) for x in (gradient, query)),
                    keys[:, :, :read],
                    values[:, :, :read],
                    _heads_first(found[start:end]),
                    next(calls),
                    0.0,
                    False,
                    attn_mask=mask.of(end - start, read),
                    scale=ctx.settings.scaling,
                )
                to_query[start:end] = asked[0].transpose(0, 1)
                for into, part in ((to_key, known), (to_value, seen)):
                    _add_to_runs(into, part[0].transpose(0, 1), row)
        return to_query, to_key, to_value, None, None


def _add_to_runs(into: Tensor, part: Tensor, row: Runs) -> None:
    """Add what belongs to the first keys of a sequence."""
    for start, end in row.keys:
        into[start:end][: len(part)] += part[: end - start]
        part = part[end - start :]
        if not len(part):
            return
