"""What an agent counts: its budget of steps or episodes, and every episode that it has finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reinlm.errors import InputError

RECENT = 100
"""Episodes that the online return is the mean of."""


@dataclass(frozen=True)
class Budget:
    """How long a call of `learn` goes on; its schedules run from `start` to `end`.

    Example: Budget(unit="steps", start=50_000, end=100_000), of the second call of `learn(50_000)`
    """

    unit: str
    """"steps" of the environment, "episodes", or "sweeps" over a model."""
    start: int
    end: int

    def next_line(self, now: int, lines: int) -> int:
        """Where the next of so many lines of metrics ends: they lie on a grid from `start`, the last one at `end`."""
        stride = max((self.end - self.start) // lines, 1)
        return min(now - (now - self.start) % stride + stride, self.end)

    def share(self, now: int) -> float:
        """How much of it is over, in [0, 1]."""
        return min(max((now - self.start) / max(self.end - self.start, 1), 0.0), 1.0)


def whole(name: str, value: Any) -> int:
    """A number without a fraction, such as 1e5, as an int. Raises InputError for any other value."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not np.isfinite(value) or value != int(value):
        raise InputError(f"{name} must be a whole number, not {value!r}")
    return int(value)


class Episodes:
    """Every finished episode: the step at which it ended, its undiscounted return and its length."""

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.returns: list[float] = []
        self.lengths: list[int] = []

    def __len__(self) -> int:
        return len(self.ends)

    def __str__(self) -> str:
        recent = f", mean return of the last {min(len(self), RECENT)}: {self.recent():.1f}" if len(self) else ""
        return f"{len(self):,} episodes{recent}"

    def add(self, step: int, total: float, length: int) -> None:
        self.ends.append(step)
        self.returns.append(total)
        self.lengths.append(length)

    def recent(self) -> float:
        """Mean return of the last hundred; NaN before the first."""
        return float(np.mean(self.returns[-RECENT:])) if self.returns else float("nan")

    def state_dict(self) -> dict[str, Any]:
        return {"ends": np.array(self.ends), "returns": np.array(self.returns), "lengths": np.array(self.lengths)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.ends, self.returns, self.lengths = (state[key].tolist() for key in ("ends", "returns", "lengths"))
