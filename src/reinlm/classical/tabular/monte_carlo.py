"""Monte Carlo control: whole episodes, no bootstrapping."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from reinlm.classical.registry import named
from reinlm.classical.tabular.exploration import greedy
from reinlm.classical.tabular.table import ControlSettings, TableAgent, first_visits
from reinlm.objectives import td_errors
from reinlm.runs import MetricSums


class MonteCarloSettings(ControlSettings):
    visits: Literal["first", "every"] = "first"
    """Which visits of a pair (s, a) count in an episode."""
    exploring_starts: bool = False
    """Begin with any action, and in any state of a world that is a table, then act greedily; else explore as ε or τ says."""
    step_size: float | None = Field(None, gt=0, le=1)
    """α; null: 1/N, the mean of all returns so far."""
    truncated: Literal["bootstrap", "drop"] = "bootstrap"
    """An episode that was cut off: go on with the value of its last state, or leave the episode out."""


@named(
    "monte_carlo",
    family="table",
    actions="discrete",
    equation="Q(S,A) ← Q(S,A) + (G - Q(S,A)) / N(S,A)",
    source="Sutton & Barto (2018) §§5.3-5.4",
    use="episodes that end soon; unbiased, at the price of variance",
)
class MonteCarlo(TableAgent):
    """G ← R + γ G, backwards, and Q(S,A) ← Q(S,A) + (G - Q(S,A)) / N(S,A) at first (or every) visits.

    With exploring starts (§5.3) or an exploring policy (§5.4). The return is the TD error against a value of 0 whose successor
    is the next return. Sutton & Barto (2018).
    """

    Settings = MonteCarloSettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.counts = np.zeros_like(self.q)
        self._table = len(self.sizes) == 1 and hasattr(self.env.unwrapped, "P") and hasattr(self.env.unwrapped, "s")

    def start(self) -> tuple[int, int]:
        """The first state, and the first action."""
        row = self.reset()
        if not self.settings.exploring_starts:
            return row, self.explore(row)
        if self._table:
            inner: Any = self.env.unwrapped
            row = inner.s = int(self.rng.choice(list(inner.P)))
        return row, self.legal[row][int(self.rng.integers(len(self.legal[row])))]

    def choose(self, row: int) -> int:
        """What is done after the first action."""
        return greedy(self.values(row), self.rng) if self.settings.exploring_starts else self.explore(row)

    def improve(self, sums: MetricSums) -> None:
        """One episode."""
        row, action = self.start()
        pairs, rewards = [(row, action)], []
        while True:
            reward, row, terminated, truncated = self.step(action)
            rewards.append(reward)
            if terminated or truncated:
                break
            action = self.choose(row)
            pairs.append((row, action))
        if truncated and self.settings.truncated == "drop":
            return
        following = 0.0 if terminated else max(self.values(row))
        counted = first_visits(pairs) if self.settings.visits == "first" else [True] * len(pairs)
        for pair, reward, counts in zip(reversed(pairs), reversed(rewards), reversed(counted), strict=True):
            following = td_errors(reward, 0.0, following, False, gamma=self.settings.discount)
            if counts:
                self.counts[pair] += 1
                step_size = self.settings.step_size or 1.0 / self.counts[pair]
                self.q[pair] += step_size * (following - self.q[pair])
        sums.add("episodes_used", 1.0, 1)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "counts": self.counts.copy()}

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.counts = state["counts"].copy()
