"""The order in which a run reads its data: a function of (seed, epoch), with a cursor that checkpoints store."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reinlm.errors import InputError


class RowOrder:
    """Yields the indices 0 … size - 1, each once per epoch, in an order that depends only on (seed, epoch).

    Example:
        >>> RowOrder(3, seed=0, shuffle=False).take(4)
        [0, 1, 2, 0]

    Args:
        shuffle: False: the order of the items.
        keys: of each item: epochs are in their ascending order; equal ones in the order that `shuffle` says.
        sources: of each item the number of its source, with `weights`: an epoch of `size` indices then takes from each source
            its share, in turn; a source that is used up begins again, in a new order.

    Raises ValueError for a size below 1.
    """

    def __init__(
        self,
        size: int,
        *,
        seed: int,
        shuffle: bool = True,
        keys: Sequence[Any] | None = None,
        sources: Sequence[int] | None = None,
        weights: Sequence[float] = (),
    ) -> None:
        if size < 1:
            raise ValueError(f"an order needs at least one item, not {size}")
        self.size, self.seed, self.shuffle = size, seed, shuffle
        self._keys, self._weights = keys, tuple(weights)
        self._members = [[i for i in range(size) if sources[i] == k] for k in range(len(weights))] if sources else []
        self.epoch = 0
        """The epoch that the next index belongs to, from 0."""
        self.position = 0
        """How many indices of that epoch were taken, in [0, size)."""
        self._permutation = self._of_epoch(0)

    def take(self, count: int) -> list[int]:
        """The next `count` indices; they may cross into later epochs."""
        if count < 0:
            raise ValueError(f"cannot take {count} items")
        taken: list[int] = []
        while len(taken) < count:
            piece = self._permutation[self.position : self.position + count - len(taken)]
            taken += piece
            self.position += len(piece)
            if self.position == self.size:
                self.epoch, self.position = self.epoch + 1, 0
                self._permutation = self._of_epoch(self.epoch)
        return taken

    @property
    def epochs(self) -> float:
        """Passes over the data so far: 1.5 after one and a half epochs."""
        return self.epoch + self.position / self.size

    def state_dict(self) -> dict[str, int]:
        """The cursor, as plain numbers."""
        return {"epoch": self.epoch, "position": self.position, "size": self.size}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from `state`. Raises InputError when the number of items has changed."""
        if state["size"] != self.size:
            raise InputError(
                f"the data held {state['size']} items when the run was saved, and hold {self.size} now",
                hint="resume with the same data, limits and options",
            )
        self.epoch, self.position = state["epoch"], state["position"]
        self._permutation = self._of_epoch(self.epoch)

    def _of_epoch(self, epoch: int) -> list[int]:
        if self._members:
            return self._mixed(epoch)
        return self._arranged(list(range(self.size)), f"{self.seed}/{epoch}")

    def _arranged(self, order: list[int], seed: str) -> list[int]:
        if self.shuffle:
            random.Random(seed).shuffle(order)
        return order if self._keys is None else sorted(order, key=self._keys.__getitem__)

    def _mixed(self, epoch: int) -> list[int]:
        """Index t comes from the source that is furthest behind its share of the first t indices.

        Every epoch takes as many from each source; a source goes on where the epoch before left it.
        """
        total, counts, turns = sum(self._weights), [0] * len(self._weights), []
        for t in range(self.size):
            behind = [weight / total * (t + 1) - count for weight, count in zip(self._weights, counts, strict=True)]
            turns.append(max(range(len(behind)), key=behind.__getitem__))
            counts[turns[-1]] += 1
        streams = [self._stream(source, epoch * count) for source, count in enumerate(counts)]
        return [next(streams[source]) for source in turns]

    def _stream(self, source: int, taken: int) -> Iterator[int]:
        """The items of a source, one pass after the other, after `taken` of them."""
        members = self._members[source]
        done, skip = divmod(taken, len(members))
        while True:
            yield from self._arranged(list(members), f"{self.seed}/{source}/{done}")[skip:]
            done, skip = done + 1, 0
