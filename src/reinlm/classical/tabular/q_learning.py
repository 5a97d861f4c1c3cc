"""Q-learning: off-policy control."""

from __future__ import annotations

from reinlm.classical.registry import named
from reinlm.classical.tabular.table import TDControl


@named(
    "q_learning",
    family="table",
    actions="discrete",
    equation="Q(S,A) ← Q(S,A) + α [R + γ max_a Q(S',a) - Q(S,A)]",
    source="Watkins (1989); Sutton & Barto (2018) §6.5",
    use="values of the greedy policy, whatever policy explores",
)
class QLearning(TDControl):
    """Q(S,A) ← Q(S,A) + α [ R + γ max_a Q(S',a) - Q(S,A) ].

    Off-policy without importance weights: A is given, and the target asks nothing of how the next action is chosen.
    Sutton & Barto (2018) §6.5.
    """

    def next_value(self, row: int) -> float:
        return max(self.values(row))
