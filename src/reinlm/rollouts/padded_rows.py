"""Answers that are being written through transformers' own cache: rows that grow together, padded on the left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reinlm.rollouts.answers import Prompt, RunningAnswer, take_tokens
from reinlm.rollouts.cache import Part, RowCache, assemble
from reinlm.rollouts.protocol import Reason
from reinlm.rollouts.sampling import RowSampling, sample

Forward = Callable[[Tensor, Tensor, Tensor | None, RowCache], Tensor]
"""(input ids [R, T], positions [R, T], mask [R, columns] or None, cache) -> logits [R, V] of the last column."""


@dataclass(frozen=True)
class Arrival:
    """Rows to join, and for each the line of its prompt in `cache` and in `logits` [lines, V]."""

    rows: Sequence[RunningAnswer]
    lines: Sequence[int]
    cache: RowCache
    logits: Tensor


@dataclass(frozen=True)
class _Prefilled:
    """A prompt that is read, kept while samples of it still wait for room."""

    prompt: Prompt
    cache: RowCache
    logits: Tensor


class PaddedRows:
    """Answers in flight, where attention takes no cache of the engine's own; implements `reinlm.rollouts.answers.AnswerRows`.

    Args:
        forward: the model's forward pass with a cache.
        pad_id: the token that fills the left of shorter prompts.
    """

    def __init__(self, forward: Forward, device: torch.device, context_length: int | None, pad_id: int) -> None:
        self._forward = forward
        self._device = device
        self._pad_id = pad_id
        self._batch = Batch(device, context_length)
        self._kept: _Prefilled | None = None

    @property
    def live(self) -> int:
        """Answers being written."""
        return self._batch.live

    def known(self, prompt: Prompt) -> bool:
        """Whether a prompt need not be read again."""
        return self._kept is not None and self._kept.prompt == prompt

    def cost(self, prompts: Sequence[Prompt]) -> int:
        """Tokens, padding included, that reading these prompts takes."""
        return len(prompts) * max(map(len, prompts))

    def forget(self) -> None:
        """The weights have changed: what waits is read anew."""
        self._kept = None

    def advance(self) -> None:
        """Read the newest token of every row."""
        self._batch.advance(self._forward)

    def admit(self, arrivals: Sequence[tuple[Prompt, Sequence[RunningAnswer]]], waiting: bool) -> None:
        """Read the prompts that are not known, and add rows; with `waiting`, more answers to the last prompt will come."""
        joining = []
        rows: list[RunningAnswer] = []
        lines: list[int] = []
        fresh: list[Prompt] = []
        for prompt, taken in arrivals:
            if self._kept is not None and self._kept.prompt == prompt:
                joining.append(Arrival(taken, [0] * len(taken), self._kept.cache, self._kept.logits))
            else:
                rows += taken
                lines += [len(fresh)] * len(taken)
                fresh.append(prompt)
        if fresh:
            cache, logits = self._prefill(fresh, waiting)
            joining.append(Arrival(rows, lines, cache, logits))
        self._batch.extend(joining)

    def choose(self, version: int) -> list[tuple[RunningAnswer, Reason]]:
        """Sample a token for every row; the rows that ended with it."""
        return self._batch.choose(version)

    def drop(self, ids: set[str]) -> None:
        """Drop the rows of these requests."""
        self._batch.drop(ids)

    def settle(self, queued: bool) -> None:
        """Remove inactive rows where they are a quarter of the batch and nothing waits that would replace them anyway."""
        if not queued:
            self._kept = None  # what comes later is read anew, whatever was asked for before
        inactive = len(self._batch) - self._batch.live
        if not self._batch.live:
            self._batch.clear()
        elif not queued and 4 * inactive >= len(self._batch):
            self._batch.compact()

    def clear(self) -> None:
        """Forget everything."""
        self._kept = None
        self._batch.clear()

    def _prefill(self, prompts: Sequence[Prompt], waiting: bool) -> tuple[RowCache, Tensor]:
        """Read prompts in one batch, padded on the left; their cache and the logits of the first answer token."""
        longest = max(len(prompt) for prompt in prompts)
        pads = [longest - len(prompt) for prompt in prompts]
        ids = [[self._pad_id] * pad + list(prompt) for pad, prompt in zip(pads, prompts, strict=True)]
        columns = torch.arange(longest, device=self._device)
        positions = columns - torch.tensor(pads, device=self._device)[:, None]
        mask = (positions >= 0).long() if any(pads) else None
        cache = RowCache()
        logits = self._forward(torch.tensor(ids, device=self._device), positions.clamp(min=0), mask, cache)
        self._kept = None
        if waiting:
            line = torch.tensor([len(prompts) - 1], device=self._device)
            self._kept = _Prefilled(prompts[-1], assemble([Part(cache, line, pads[-1])]), logits[-1:])
        return cache, logits


class Batch:
    """Running rows. A finished row stays as an inactive one, whose tokens are ignored, until `compact` or `extend`."""

    def __init__(self, device: torch.device, context_length: int | None) -> None:
        self._device = device
        self._last_position = None if context_length is None else context_length - 1
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._rows: list[RunningAnswer | None] = []
        self._cache = RowCache()
        self._tokens = self._logits = torch.empty(0)
        self.live = 0

    def __len__(self) -> int:
        return len(self._rows)

    def advance(self, forward: Forward) -> None:
        """Read the newest token of every row, so that the logits for the next one stand ready."""
        positions = self._cache.width - self._starts[:, None]
        if self._last_position is not None:
            positions.clamp_(max=self._last_position)  # inactive rows run on; absolute positions are bounded
        mask = None
        if self._padded:
            columns = torch.arange(self._cache.width + 1, device=self._device)
            mask = (columns >= self._starts[:, None]).long()
        self._logits = forward(self._tokens[:, None], positions, mask, self._cache)

    def extend(self, arrivals: Sequence[Arrival]) -> None:
        """Add rows, and remove inactive ones. Between `advance` and `choose`."""
        parts = [Part(arrival.cache, self._index(arrival.lines)) for arrival in arrivals]
        logits = [arrival.logits for arrival in arrivals]
        rows = [row for arrival in arrivals for row in arrival.rows]
        if self.live:
            parts.insert(0, self._survivors(unread=0))
            logits.insert(0, self._logits)
            rows = [*(row for row in self._rows if row is not None), *rows]
        self._logits = torch.cat([lines.index_select(0, part.rows) for lines, part in zip(logits, parts, strict=True)])
        self._adopt(rows, parts, unread=0)

    def choose(self, version: int) -> list[tuple[RunningAnswer, Reason]]:
        """Sample a token for every row; the rows that ended with it. Waits for the device once."""
        chosen, scores = sample(self._logits, self._sampling, self._cache.width - self._firsts)
        self._tokens, self._logits = chosen, torch.empty(0)
        ended = []
        for index, reason in take_tokens(self._rows, chosen, scores, version):
            row = self._rows[index]
            assert row is not None
            ended.append((row, reason))
            self._rows[index] = None
        self._count()
        return ended

    def drop(self, ids: set[str]) -> None:
        """Drop the rows of these requests."""
        self._rows = [None if row is None or row.request.id in ids else row for row in self._rows]
        self._count()

    def compact(self) -> None:
        """Remove inactive rows, and the columns that only they used. After `choose`."""
        part = self._survivors(unread=1)
        self._tokens = self._tokens.index_select(0, part.rows)
        self._adopt([row for row in self._rows if row is not None], [part], unread=1)

    def _survivors(self, unread: int) -> Part:
        """The live rows; `unread` is how many of a row's tokens the cache does not hold yet."""
        active = [index for index, row in enumerate(self._rows) if row is not None]
        longest = max(row.length for row in self._rows if row is not None)
        return Part(self._cache, self._index(active), self._cache.width - (longest - unread))

    def _adopt(self, rows: Sequence[RunningAnswer], parts: Sequence[Part], unread: int) -> None:
        self._cache = assemble(parts)
        self._rows = list(rows)
        self._count()
        starts = [self._cache.width - (row.length - unread) for row in rows]
        firsts = [start + len(row.request.token_ids) for start, row in zip(starts, rows, strict=True)]
        self._padded = any(starts)
        self._starts, self._firsts = self._index(starts), self._index(firsts)
        self._sampling = RowSampling.of([row.request for row in rows], self._device)

    def _count(self) -> None:
        self.live = sum(row is not None for row in self._rows)

    def _index(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)
