"""Off-policy Monte Carlo: one policy acts, another is learned, importance weights account for the difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from reinlm.classical.registry import named
from reinlm.classical.tabular.table import TableAgent, TableSettings
from reinlm.errors import InputError
from reinlm.objectives import exponent, td_errors
from reinlm.runs import MetricSums


class OffPolicySettings(TableSettings):
    estimator: Literal["weighted", "ordinary"] = "weighted"
    """The mean of weighted returns over the sum of weights (biased, low variance), or over their number (the reverse)."""
    epsilon: float = Field(1.0, gt=0, le=1)
    """The behaviour: any action with probability ε, else the target's."""
    largest_weight: float | None = Field(None, gt=0)
    """A bound on the weight of a return; null: none, and no bias."""


@named(
    "off_policy_monte_carlo",
    family="table",
    actions="discrete",
    equation="Q(S,A) ← Q(S,A) + W/C (G - Q(S,A)),   C ← C + W,   W ← W π(A|S)/b(A|S)",
    source="Sutton & Barto (2018) §§5.5-5.7",
    use="the value of one policy from the episodes of another",
)
class OffPolicyMonteCarlo(TableAgent):
    """C ← C + W (weighted) or C + 1 (ordinary),  Q(S,A) ← Q(S,A) + (W G - …)/C,  W ← W π(A|S) / b(A|S), backwards.

    Control: the target is greedy. Prediction: with `target`, probabilities [S, A], that policy is evaluated, from Python alone.
    `state_values` are weighed by the ratio of all actions from the state on, `q` by that of all later ones. Every visit
    counts. Sutton & Barto (2018) §§5.5-5.7.
    """

    Settings = OffPolicySettings

    def __init__(
        self,
        *given: Any,
        target: Sequence[Sequence[float]] | np.ndarray | Tensor | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*given, **settings)
        self.target = None if target is None else np.asarray(target, dtype=np.float64)
        if self.target is not None and self.target.shape != self.q.shape:
            raise InputError(f"target has shape {self.target.shape}, not {self.q.shape}: a row for each state")
        self.weights = np.zeros_like(self.q)
        self.state_values = np.zeros(self.states)
        self.state_weights = np.zeros(self.states)

    def probabilities(self, row: int) -> list[float]:
        """The behaviour b(·|row)."""
        target, legal = self.targets(row), self.legal[row]
        epsilon = self.settings.epsilon
        return [(1 - epsilon) * p + epsilon * (a in legal) / len(legal) for a, p in enumerate(target)]

    def targets(self, row: int) -> list[float]:
        """The target π(·|row)."""
        if self.target is not None:
            found: list[float] = self.target[row].tolist()
            return found
        values = self.values(row)
        best = values.index(max(values))
        return [float(action == best) for action in range(self.actions)]

    def explore(self, row: int) -> int:
        draw, total = self.rng.random(), 0.0
        probabilities = self.probabilities(row)
        for action, p in enumerate(probabilities):
            total += p
            if draw < total:
                return action
        return max(action for action, p in enumerate(probabilities) if p > 0.0)

    def improve(self, sums: MetricSums) -> None:
        """One episode. One that was cut off goes on with the value of its last state under the target."""
        row, over, terminated = self.reset(), False, False
        steps: list[tuple[int, int, float, float]] = []
        while not over:
            action = self.explore(row)
            behaviour = self.probabilities(row)[action]
            reward, following, terminated, truncated = self.step(action)
            steps.append((row, action, reward, math.log(behaviour)))
            row, over = following, terminated or truncated
        value = 0.0 if terminated else sum(p * q for p, q in zip(self.targets(row), self.values(row), strict=True) if p)
        log_weight = 0.0
        for row, action, reward, log_behaviour in reversed(steps):
            value = td_errors(reward, 0.0, value, False, gamma=self.settings.discount)
            self._learn(self.q, self.weights, (row, action), value, self._weight(log_weight))
            probability = self.targets(row)[action]
            log_weight += (math.log(probability) if probability else -math.inf) - log_behaviour
            self._learn(self.state_values, self.state_weights, (row,), value, self._weight(log_weight))
            if log_weight == -math.inf and self.settings.estimator == "weighted":
                break  # every earlier return has weight 0
        sums.add("importance_weight", self._weight(log_weight), 1)

    def _weight(self, log_weight: float) -> float:
        """π/b as a product over an episode, formed in logs."""
        if log_weight == -math.inf:
            return 0.0
        weight = float(exponent(torch.tensor(log_weight, dtype=torch.float64)).exp())
        return min(weight, self.settings.largest_weight or math.inf)

    def _learn(self, values: np.ndarray, weights: np.ndarray, at: tuple[int, ...], value: float, weight: float) -> None:
        if self.settings.estimator == "weighted":
            weights[at] += weight
            if weight:
                values[at] += weight / weights[at] * (value - values[at])
        else:
            weights[at] += 1.0
            values[at] += (weight * value - values[at]) / weights[at]

    def state_dict(self) -> dict[str, Any]:
        kept = {name: getattr(self, name).copy() for name in ("weights", "state_values", "state_weights")}
        return {**super().state_dict(), **kept, "target": self.target}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for name in ("weights", "state_values", "state_weights"):
            setattr(self, name, state[name].copy())
        self.target = state["target"]
