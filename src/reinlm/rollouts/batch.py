"""The answers that are being written: rows of one cache that advance together by a token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from reinlm.errors import RunError
from reinlm.rollouts.cache import Part, RowCache, assemble
from reinlm.rollouts.protocol import Completion, Reason, Request
from reinlm.rollouts.sampling import RowSampling, sample
from reinlm.rollouts.stops import StopStrings

Forward = Callable[[Tensor, Tensor, Tensor | None, RowCache], Tensor]
"""(input ids [R, T], positions [R, T], mask [R, columns] or None, cache) -> logits [R, V] of the last column."""


@dataclass(slots=True)
class RunningAnswer:
    """One answer in flight."""

    request: Request
    limit: int
    """Tokens at most: what was asked for, or what the context still holds."""
    bound: Reason
    """Which of the two: "length" or "context"."""
    stops: frozenset[int]
    strings: StopStrings | None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Prompt and answer so far, in tokens."""
        return len(self.request.token_ids) + len(self.tokens)

    def take(self, token: int, logprob: float, version: int) -> Reason | None:
        """Append a token; why the answer ends with it, or None."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if token in self.stops or (self.strings is not None and self.strings.completed(self.tokens)):
            return "stop"
        return self.bound if len(self.tokens) >= self.limit else None

    def completion(self, reason: Reason) -> Completion:
        """The finished answer."""
        columns = {
            "rollout_logprobs": np.array(self.logprobs, np.float32),
            "version": np.array(self.versions, np.int32),
        }
        return Completion(self.request.id, np.array(self.tokens, np.int32), columns, reason)


@dataclass(frozen=True)
class Arrival:
    """Rows to join, and for each the line of its prompt in `cache` and in `logits` [lines, V]."""

    rows: Sequence[RunningAnswer]
    lines: Sequence[int]
    cache: RowCache
    logits: Tensor


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
        tokens, logprobs = chosen.tolist(), scores.tolist()
        ended: list[tuple[RunningAnswer, Reason]] = []
        for index, row in enumerate(self._rows):
            if row is None:
                continue
            logprob = logprobs[index]
            if logprob != logprob:
                raise RunError(
                    f"the model's logits for request {row.request.id!r} are not finite at token {len(row.tokens)} "
                    f"(policy version {version})",
                    hint="the weights have diverged: go back to a checkpoint and lower the learning rate",
                )
            reason = row.take(tokens[index], logprob, version)
            if reason is not None:
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
