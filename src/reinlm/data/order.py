"""The order in which a run reads its data: a function of (seed, epoch), with a cursor that checkpoints store."""

from __future__ import annotations

import random
from collections.abc import Mapping

from reinlm.errors import InputError


class RowOrder:
    """Yields the indices 0 … size - 1, each once per epoch, in an order that depends only on (seed, epoch).

    Example:
        >>> RowOrder(3, seed=0, shuffle=False).take(4)
        [0, 1, 2, 0]

    Raises ValueError for a size below 1.
    """

    def __init__(self, size: int, *, seed: int, shuffle: bool = True) -> None:
        if size < 1:
            raise ValueError(f"an order needs at least one item, not {size}")
        self.size, self.seed, self.shuffle = size, seed, shuffle
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
        order = list(range(self.size))
        if self.shuffle:
            random.Random(f"{self.seed}/{epoch}").shuffle(order)
        return order
