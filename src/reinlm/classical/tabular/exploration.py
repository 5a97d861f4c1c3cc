"""How a table's values become a choice: ε-greedy or softmax, over the actions that a state has."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def greedy(values: Sequence[float], rng: np.random.Generator | None = None) -> int:
    """An action of the highest value: the first of equals, or with `rng` any of them, all alike."""
    best = max(values)
    first = values.index(best)
    if rng is None or values.count(best) == 1:
        return first
    return int(rng.choice([action for action, value in enumerate(values) if value == best]))


def epsilon_greedy(values: Sequence[float], legal: Sequence[int], epsilon: float, rng: np.random.Generator) -> int:
    """Any legal action with probability ε, else a greedy one. Sutton & Barto (2018) §2.2."""
    if rng.random() < epsilon:
        return legal[int(rng.integers(len(legal)))]
    return greedy(values, rng)


def epsilon_greedy_probabilities(values: Sequence[float], legal: Sequence[int], epsilon: float) -> list[float]:
    """What `epsilon_greedy` chooses with; equals share the greedy part."""
    best = max(values)
    ties = [action for action in legal if values[action] == best]
    probabilities = [0.0] * len(values)
    for action in legal:
        probabilities[action] = epsilon / len(legal)
    for action in ties:
        probabilities[action] += (1.0 - epsilon) / len(ties)
    return probabilities


def softmax_probabilities(values: Sequence[float], legal: Sequence[int], temperature: float) -> list[float]:
    """exp(Q / τ), normalised over the legal actions. Sutton & Barto (2018) §13.1."""
    best = max(values[action] for action in legal)
    weights = [0.0] * len(values)
    for action in legal:
        weights[action] = math.exp((values[action] - best) / temperature)
    total = sum(weights)
    return [weight / total for weight in weights]
