"""Prefix sharing: sequences in one row without padding, where what they share at their beginning is computed once.

Sorted by their tokens, each sequence adds to the row what it does not share with the sequence before it. The answers to a
prompt share the prompt, the turns of an episode what came before, and equal sequences everything. Position-wise layers run
on the row as it is. Attention runs on rows of queries, the tokens that a sequence added, over keys, all tokens of it; of long
sequences on a CPU one by one (`reinlm.models.cpu_attention`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from reinlm.models.cpu_attention import KERNEL_COST, Runs, attend_runs, takes_runs
from reinlm.models.row_attention import LayerSettings, as_computed

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

CALL_COST = 1 << 16
"""What one more attention call costs, in pairs of query and key."""


@dataclass(frozen=True)
class Block:
    """The rows of one attention call: R sequences, the tokens that each added as queries, and all of its tokens as keys.

    Rows are padded on the right with token 0 of the row, which no query of a sequence reads.
    """

    queries: Int[Tensor, "rows queries"]
    """Index in the row of every query."""
    keys: Int[Tensor, "rows keys"]
    shared: Int[Tensor, " rows"]
    """How many of the keys come before the first query."""

    def allowed(self, window: int | None = None) -> Bool[Tensor, "rows 1 queries keys"]:
        """Whether a query attends to a key: those up to itself, and with a sliding window the last `window` of them."""
        device = self.keys.device
        key = torch.arange(self.keys.shape[1], device=device)
        query = self.shared[:, None, None, None] + torch.arange(self.queries.shape[1], device=device)[:, None]
        seen = key <= query
        return seen if window is None else seen & (key > query - window)


@dataclass(frozen=True)
class PrefixTree:
    """How attention runs on a row of U tokens.

    Example: the sequences 5 6 7 and 5 6 8 9 as the row 5 6 7 8 9, whose second sequence has the queries 3 and 4 and the
    keys 0, 1, 3 and 4.
    """

    blocks: tuple[Block, ...]
    places: Int[Tensor, " row"]
    """[U]: where each token's query stands among those of all blocks, padding included."""
    runs: tuple[Runs, ...] = ()
    """The same sequence by sequence, where that is cheaper on a CPU than the blocks; else none."""
    masks: dict[tuple[torch.dtype, int | None], list[Tensor | None]] = field(default_factory=dict, repr=False)
    """Made by the first layer that needs them: 0 where a query attends to a key, else -inf."""

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(block.keys.shape[1] for block in self.blocks)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, settings: LayerSettings) -> Tensor:
        """As `reinlm.models.row_attention.RowAttention`."""
        return tree_attention(query, key, value, self, settings)

    def mask(self, dtype: torch.dtype, window: int | None) -> list[Tensor | None]:
        """The mask of every block, [rows, 1, queries, keys]; None where each query simply attends to all keys up to itself."""
        if window is not None and window >= self.longest:
            window = None
        if (dtype, window) not in self.masks:
            self.masks[dtype, window] = [_mask(block, dtype, window) for block in self.blocks]
        return self.masks[dtype, window]


@dataclass(frozen=True)
class SharedRow:
    """A row of U tokens that holds every sequence, and how attention runs on it."""

    tokens: np.ndarray[Any, Any]
    """[U] index of each token in the concatenated sequences."""
    positions: np.ndarray[Any, Any]
    """[U] its position in its sequence."""
    index: np.ndarray[Any, Any]
    """[all tokens]: where the row holds each token of the concatenated sequences; -1 where an ending leaves it out."""
    blocks: tuple[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]], ...]
    """Queries, keys and shared tokens of every `Block`."""

    def ending(self, read: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], SharedRow]:
        """For the last layer, what is computed where some tokens [U] of bool are read: of each sequence's own tokens those from
        the first that is read, as their index [K] in the row, and as a row of K queries over the keys of this one."""
        rows = []
        for queries, keys, _ in self.blocks:
            for own, path in zip(queries, keys, strict=True):
                own, path = own[own >= 0], path[path >= 0]
                if (seen := read[own]).any():
                    rows.append((own[int(seen.argmax()) :], path))
        kept = np.sort(np.concatenate([own for own, _ in rows]))
        place = np.full(len(self.tokens), -1)
        place[kept] = np.arange(len(kept))
        blocks = tuple(_blocks([(place[own], path) for own, path in rows]))
        return kept, SharedRow(self.tokens[kept], self.positions[kept], place[self.index], blocks)

    def tree(self, device: torch.device) -> PrefixTree:
        """How attention runs on the row, as tensors on a device."""
        places = np.zeros(len(self.tokens), np.int64)
        first = 0
        blocks = []
        for queries, keys, shared in self.blocks:
            grid = first + np.arange(queries.size).reshape(queries.shape)
            own = queries >= 0
            places[queries[own]] = grid[own]
            first += queries.size
            moved = (torch.from_numpy(x).to(device) for x in (queries.clip(0), keys.clip(0), shared))
            blocks.append(Block(*moved))
        return PrefixTree(
            tuple(blocks), torch.from_numpy(places).to(device), self._runs() if device.type == "cpu" else ()
        )

    def _runs(self) -> tuple[Runs, ...]:
        """The sequences one by one, where that is cheaper than the blocks."""
        runs = []
        for queries, keys, _ in self.blocks:
            runs += [Runs.of(own[own >= 0], path[path >= 0]) for own, path in zip(queries, keys, strict=True)]
        blocks = sum(queries.size * keys.shape[1] + KERNEL_COST for queries, keys, _ in self.blocks)
        return tuple(runs) if sum(row.cost for row in runs) < blocks else ()


def share_prefixes(sequences: Sequence[np.ndarray[Any, Any]]) -> SharedRow:
    """One row of all sequences, in which no two sequences repeat a common beginning.

    Args:
        sequences: token ids; one of them at least is not empty.
    """
    lengths = np.array([len(ids) for ids in sequences])
    starts = lengths.cumsum() - lengths
    index = np.zeros(int(lengths.sum()), np.int64)
    tokens, positions = [], []
    rows: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []  # of each sequence: its queries and its keys
    path = np.zeros(0, np.int64)
    size = 0
    for number, shared in prefix_order(sequences):
        own = np.arange(size, size + lengths[number] - shared)
        path = np.concatenate([path[:shared], own])
        index[starts[number] : starts[number] + lengths[number]] = path
        if len(own):
            tokens.append(np.arange(starts[number] + shared, starts[number] + lengths[number]))
            positions.append(np.arange(shared, lengths[number]))
            rows.append((own, path))
            size += len(own)
    return SharedRow(np.concatenate(tokens), np.concatenate(positions), index, tuple(_blocks(rows)))


def micro_batches_sharing(
    sequences: Sequence[np.ndarray[Any, Any]], budget_tokens: int, units: Sequence[Sequence[int]] | None = None
) -> list[list[int]]:
    """Split sequences into micro-batches of at most `budget_tokens` each, so that those that share most stay together.

    The cost of one is the length of its row. A unit larger than the budget gets a micro-batch of its own.

    Args:
        units: the sequences that belong together (pairs, groups); by default each stands alone.
    """
    order = {number: place for place, (number, _) in enumerate(prefix_order(sequences))}
    whole = [[number] for number in order] if units is None else [sorted(unit, key=order.__getitem__) for unit in units]
    batches: list[list[int]] = []
    used = 0
    for unit in sorted(whole, key=lambda members: order[members[0]]):
        cost = _row_length(sequences, unit)
        if batches:
            joined = _row_length(sequences, [batches[-1][-1], *unit]) - len(sequences[batches[-1][-1]])
            if used + joined <= budget_tokens:
                batches[-1] += unit
                used += joined
                continue
        batches.append(list(unit))
        used = cost
    return batches


def prefix_order(sequences: Sequence[np.ndarray[Any, Any]]) -> Iterator[tuple[int, int]]:
    """Sequences in the order of their tokens, and how many of its first tokens each shares with the one before it."""
    before = np.zeros(0, np.int64)
    for number in sorted(range(len(sequences)), key=lambda number: sequences[number].astype(">u4").tobytes()):
        yield number, _shared(before, sequences[number])
        before = sequences[number]


def _shared(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> int:
    """How many tokens two sequences share at their beginning."""
    size = min(len(first), len(second))
    same = first[:size] == second[:size]
    return size if same.all() else int(same.argmin())


def _row_length(sequences: Sequence[np.ndarray[Any, Any]], members: Sequence[int]) -> int:
    """Tokens of the row of some sequences, which are in the order of their tokens."""
    shared = sum(_shared(sequences[first], sequences[second]) for first, second in pairwise(members))
    return sum(len(sequences[number]) for number in members) - shared


def _blocks(
    rows: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]],
) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Rows of similar lengths together; those that share nothing apart from others, since they need no mask."""
    alone = [row for row in rows if len(row[0]) == len(row[1])]
    if len(alone) < len(rows) and sum(len(own) ** 2 for own, _ in alone) // 2 > CALL_COST:
        yield from map(_block, _similar(alone))
        rows = [row for row in rows if len(row[0]) < len(row[1])]
    yield from map(_block, _similar(rows))


def _similar(
    rows: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]],
) -> Iterator[list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]]:
    """Rows in groups of similar lengths: one more call is made where it costs less than the padding that it saves."""
    part: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
    queries = keys = useful = 0
    for row in sorted(rows, key=lambda row: (-len(row[0]), -len(row[1]))):
        queries, keys, useful = max(queries, len(row[0])), max(keys, len(row[1])), useful + len(row[0]) * len(row[1])
        if part and (len(part) + 1) * queries * keys - useful > max(CALL_COST, useful // 4):
            yield part
            part, queries, keys, useful = [], len(row[0]), len(row[1]), len(row[0]) * len(row[1])
        part.append(row)
    yield part


def _block(
    rows: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]],
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows padded with -1 on the right: queries [R, Lq], keys [R, Lk], and the shared tokens of each [R]."""
    shared = np.array([len(keys) - len(queries) for queries, keys in rows])
    return _pad([row[0] for row in rows]), _pad([row[1] for row in rows]), shared


def _pad(rows: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    padded = np.full((len(rows), max(len(row) for row in rows)), -1, np.int64)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return padded


def _mask(block: Block, dtype: torch.dtype, window: int | None) -> Tensor | None:
    if window is None and not bool(block.shared.any()):
        return None
    allowed = block.allowed(window)
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))


# ---------------------------------------------------------------------------------------------------- attention


def tree_attention(
    query: Float[Tensor, "1 heads asked size"],
    key: Float[Tensor, "1 kv_heads row size"],
    value: Float[Tensor, "1 kv_heads row size"],
    tree: PrefixTree,
    settings: LayerSettings,
) -> Float[Tensor, "1 asked heads size"]:
    """Attention of the tokens of the row, or of an ending, to those before in their own sequences, and to themselves."""
    query, key, value = as_computed(query, key, value)
    if tree.runs and takes_runs(query, settings):
        return attend_runs(query, key, value, tree.runs, settings)
    heads, size = query.shape[1], query.shape[3]
    flat_query, flat_key, flat_value = (x[0].transpose(0, 1).flatten(1) for x in (query, key, value))
    found = []
    for block, mask in zip(tree.blocks, tree.mask(query.dtype, settings.window), strict=True):
        answer = F.scaled_dot_product_attention(
            _rows(flat_query, block.queries, size),
            _rows(flat_key, block.keys, size),
            _rows(flat_value, block.keys, size),
            attn_mask=mask,
            dropout_p=settings.dropout,
            is_causal=mask is None,
            scale=settings.scaling,
            enable_gqa=key.shape[1] != heads,
        )
        found.append(answer.transpose(1, 2).flatten(0, 1).flatten(1))
    states = found[0] if len(found) == 1 else torch.cat(found)
    answers: Tensor = F.embedding(tree.places, states).unflatten(1, (heads, size))[None]
    return answers


def _rows(states: Tensor, index: Tensor, size: int) -> Tensor:
    """[U, heads · size] -> [R, heads, L, size]. `embedding` adds the gradients of repeated tokens up quickly on the CPU."""
    rows: Tensor = F.embedding(index, states).unflatten(2, (-1, size)).transpose(1, 2)
    return rows
