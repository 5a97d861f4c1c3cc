"""Lay out sequences as padded or packed rows for a backbone, and split them into micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from reinlm.batches import TokenBatch
from reinlm.errors import InputError
from reinlm.models.prefix_sharing import PrefixTree, SharedRow, share_prefixes
from reinlm.models.row_attention import attended_by
from reinlm.objectives.ratios import widest

Packing = Literal["pad", "pack", "share"]
"""Rows side by side with padding; all sequences in one row; or in one row, with what they share computed once."""


@dataclass(frozen=True)
class Ending:
    """The part of a row that the last layer computes, for the states that are read alone."""

    kept: Tensor
    """[K] index into the row."""
    tree: PrefixTree
    """Attention of these tokens over the whole row."""
    scored: Tensor
    """[N] as of `Rows`, into what is kept."""


@dataclass(frozen=True)
class Rows:
    """The inputs of a backbone, and the index of the state that predicts each scored token."""

    inputs: dict[str, Any]
    """`input_ids` [R, L]; in one row also `position_ids` [1, L]; and where sequences share tokens, the `PrefixTree`."""
    scored: Tensor
    """[N] index into the flattened rows."""
    targets: Tensor
    """[N] the scored tokens."""
    temperature: Tensor | None
    """[N] sampling temperature of each scored token; None: 1 everywhere."""
    tree: PrefixTree | None = None
    """How attention runs where sequences share tokens."""
    ending: Ending | None = None
    """What the last layer computes, where it is less than the row by a tenth."""

    def gather(self, states: Tensor) -> Tensor:
        """[R, L, H] states -> [N, H]: those that predict the scored tokens."""
        return states.flatten(0, 1).index_select(0, self.scored)


def lay_out(batch: TokenBatch, packing: Packing, fill: int, device: torch.device, *, after_last: bool = False) -> Rows:
    """Build rows: each sequence ends before its last scored token, which is only a target.

    Args:
        batch: with at least one scored token.
        packing: "pad" makes one row a sequence, padded on the right; "pack" one row with all sequences end to end;
            "share" one row with what sequences share at their beginning once.
        fill: a token for padding; nothing reads it.
        after_last: let a position equal its sequence's length: the state after the last token, whose target is `fill`.

    Raises:
        InputError: nothing to score, or a position outside its sequence.
    """
    if not batch.tokens:
        raise InputError("there is no token to score", hint="give at least one position")
    tokens = batch.token_ids.numpy().astype(np.int64)
    lengths, position = batch.lengths.numpy(), batch.positions.numpy()
    owner = batch.layout.index("sequence").numpy()
    if (wrong := (position < 1) | (position >= lengths[owner] + after_last)).any():
        at = int(wrong.argmax())
        raise InputError(
            f"sequence {owner[at]} has {lengths[owner[at]]} tokens and cannot be scored at position {position[at]}",
            hint="positions run from 1 (nothing stands before the first token) to length - 1",
        )
    start = lengths.cumsum() - lengths
    others: dict[str, Any] = {}
    tree = ending = None
    needed = np.zeros_like(lengths)
    np.maximum.at(needed, owner, position)
    offset = np.arange(len(tokens)) - np.repeat(start, lengths)
    read = offset < np.repeat(needed, lengths)
    targets = np.append(tokens, fill)[np.where(position < lengths[owner], start[owner] + position, len(tokens))]
    if packing == "pack":
        inputs = {"input_ids": tokens[read][None], "position_ids": offset[read][None]}
        scored = (needed.cumsum() - needed)[owner] + position - 1
    elif packing == "share":
        shared = share_prefixes(np.split(tokens[read], needed.cumsum()[:-1]))
        inputs = {"input_ids": tokens[read][shared.tokens][None], "position_ids": shared.positions[None]}
        tree = shared.tree(device)
        others = attended_by(tree, device)
        places = (needed.cumsum() - needed)[owner] + position - 1
        scored = shared.index[places]
        ending = _ending(shared, places, device)
    else:
        row = (needed > 0).cumsum() - 1
        grid = np.arange(needed.max()) < needed[needed > 0, None]
        ids = np.full(grid.shape, fill, np.int64)
        ids[grid] = tokens[read]
        inputs = {"input_ids": ids}
        scored = row[owner] * grid.shape[1] + position - 1
    temperature = None
    if batch.temperature is not None and not bool((batch.temperature == 1.0).all()):
        temperature = batch.temperature[torch.from_numpy(owner)].to(device, widest(device))
    return Rows(
        {name: torch.from_numpy(array).to(device) for name, array in inputs.items()} | others,
        torch.from_numpy(scored).to(device),
        torch.from_numpy(targets).to(device),
        temperature,
        tree,
        ending,
    )


def _ending(row: SharedRow, places: np.ndarray[Any, Any], device: torch.device) -> Ending | None:
    """What the last layer computes for the states at `places` of the concatenated sequences."""
    read = np.zeros(len(row.tokens), np.bool_)
    read[row.index[places]] = True
    kept, part = row.ending(read)
    if len(kept) > 0.9 * len(read):
        return None
    index, scored = (torch.from_numpy(x).to(device) for x in (kept, part.index[places]))
    return Ending(index, part.tree(device), scored)


def micro_batches(
    lengths: Sequence[int], budget_tokens: int, packing: Packing = "pad", units: Sequence[Sequence[int]] | None = None
) -> list[list[int]]:
    """Split sequences into micro-batches of at most `budget_tokens` each, the longest first, and no unit in two of them.

    The cost of one is rows · longest where it is padded, and the sum of lengths where it is packed. A unit larger than the
    budget gets a micro-batch of its own. Every index comes once; ties keep their order.

    Args:
        lengths: tokens of each sequence.
        units: the sequences that belong together (pairs, groups); by default each stands alone.

    Example:
        >>> micro_batches([3, 9, 4, 4], budget_tokens=12)
        [[1], [2, 3, 0]]
    """
    if budget_tokens < 1:
        raise InputError(f"budget_tokens must be at least 1, not {budget_tokens}")
    whole = [[index] for index in range(len(lengths))] if units is None else units
    batches: list[list[int]] = []
    longest = used = 0  # of the current micro-batch: its longest sequence, and the sum of its lengths
    for unit in sorted(whole, key=lambda members: -max(lengths[i] for i in members)):
        reach, size = max(lengths[i] for i in unit), sum(lengths[i] for i in unit)
        if batches:
            padded = (len(batches[-1]) + len(unit)) * max(longest, reach)
            cost = padded if packing == "pad" else used + size
            if cost <= budget_tokens:
                batches[-1] += unit
                used += size
                continue
        batches.append(list(unit))
        longest, used = reach, size
    return batches


def filler(model: nn.Module) -> int:
    """A token for padding. Nothing reads it: rows are padded on the right, and no position looks ahead.

    Without an attention mask, attention uses its fastest kernel. Transformers warns about pad tokens without a mask, so
    this is another token.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    return 1 if getattr(getattr(inner, "config", None), "pad_token_id", None) == 0 else 0
