"""Expected SARSA: on-policy control without the noise of the next action."""

from __future__ import annotations

from reinlm.classical.registry import named
from reinlm.classical.tabular.table import TDControl


@named(
    "expected_sarsa",
    family="table",
    actions="discrete",
    equation="Q(S,A) ← Q(S,A) + α [R + γ Σ_a π(a|S') Q(S',a) - Q(S,A)]",
    source="van Seijen et al. (2009); Sutton & Barto (2018) §6.6",
    use="SARSA's values with less variance: it bears α = 1 where nothing else is random",
)
class ExpectedSARSA(TDControl):
    """Q(S,A) ← Q(S,A) + α [ R + γ Σ_a π(a|S') Q(S',a) - Q(S,A) ]: the mean over A' in place of one drawn.

    Sutton & Barto (2018) §6.6.
    """

    def next_value(self, row: int) -> float:
        values = self.values(row)
        return sum(p * value for p, value in zip(self.probabilities(row), values, strict=True) if p > 0.0)
