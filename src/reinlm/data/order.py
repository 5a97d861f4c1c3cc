"""The order in which a run takes its data: a function of (seed, epoch), with a cursor that a checkpoint holds."""

from __future__ import annotations

import random
from collections.abc import Mapping

from reinlm.errors import InputError


class RowOrder:
    """Deals the indices 0 … size - 1, each once an epoch, in an order that depends on (seed, epoch) alone.

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
        """How many indices of that epoch were dealt, in [0, size)."""
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
        """How often the data were gone through: 1.5 after one and a half epochs."""
        return self.epoch + self.position / self.size

    def state_dict(self) -> dict[str, int]:
        """The cursor, as plain numbers."""
        return {"epoch": self.epoch, "position": self.position, "size": self.size}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where `state` was taken. Raises InputError when the number of items is another one now."""
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
