"""SARSA: on-policy control."""

from __future__ import annotations

from typing import Any

from reinlm.classical.registry import named
from reinlm.classical.tabular.table import TDControl


@named(
    "sarsa",
    family="table",
    actions="discrete",
    equation="Q(S,A) ← Q(S,A) + α [R + γ Q(S',A') - Q(S,A)]",
    source="Rummery & Niranjan (1994); Sutton & Barto (2018) §6.4",
    use="values of the policy as it really acts, exploration included",
)
class SARSA(TDControl):
    """Q(S,A) ← Q(S,A) + α [ R + γ Q(S',A') - Q(S,A) ], where A' is the action that is taken next.

    It learns what its own exploring policy is worth, so on a cliff it keeps its distance. Sutton & Barto (2018) §6.4.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._planned: int | None = None

    def reset(self) -> int:
        self._planned = None
        return super().reset()

    def next_value(self, row: int) -> float:
        """Q(S',A'): A' is drawn before the update, and taken after it."""
        self._planned = self.explore(row)
        return float(self.q[row, self._planned])

    def choose(self, row: int) -> int:
        return self.explore(row) if self._planned is None else self._planned
