"""Double Q-learning: one table chooses, the other judges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reinlm.classical.registry import named
from reinlm.classical.tabular.exploration import greedy
from reinlm.classical.tabular.table import TableAgent, TDSettings
from reinlm.objectives import td_errors
from reinlm.runs import MetricSums


@named(
    "double_q_learning",
    family="table",
    actions="discrete",
    equation="Q1(S,A) ← Q1(S,A) + α [R + γ Q2(S', argmax_a Q1(S',a)) - Q1(S,A)], or the other way round",
    source="van Hasselt (2010); Sutton & Barto (2018) §6.7",
    use="noisy rewards, where the maximum over estimates flatters",
)
class DoubleQLearning(TableAgent):
    """With probability ½  Q1(S,A) ← Q1(S,A) + α [ R + γ Q2(S', argmax_a Q1(S',a)) - Q1(S,A) ], else the other way round.

    Acts on Q1 + Q2. The action that one table estimates to be the best is valued by the other, whose errors are independent, so
    that the maximum is not biased upwards. Sutton & Barto (2018) §6.7.
    """

    Settings = TDSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pair = (self.q.copy(), self.q.copy())

    def values(self, row: int) -> list[float]:
        """(Q1 + Q2) / 2."""
        found: list[float] = (0.5 * (self.pair[0][row] + self.pair[1][row])).tolist()
        return found

    def improve(self, sums: MetricSums) -> None:
        """One episode."""
        row, over = self.reset(), False
        errors = 0.0
        while not over:
            action = self.explore(row)
            reward, following, terminated, truncated = self.step(action)
            learner, judge = self.pair if self.rng.random() < 0.5 else self.pair[::-1]
            future = 0.0 if terminated else float(judge[following, greedy(learner[following].tolist(), self.rng)])
            error = td_errors(reward, float(learner[row, action]), future, terminated, gamma=self.settings.discount)
            learner[row, action] += self.settings.step_size * error
            errors += abs(error)
            row, over = following, terminated or truncated
        self.q = 0.5 * (self.pair[0] + self.pair[1])
        sums.add("td_error", errors, self.length)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "pair": tuple(table.copy() for table in self.pair)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.pair = tuple(table.copy() for table in state["pair"])
