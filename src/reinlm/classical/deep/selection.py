"""Evaluations in training, of which the weights that did best are kept."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reinlm.classical.agent import Agent
from reinlm.classical.evaluation import evaluate
from reinlm.runs import MetricSums

SELECTION_SEED = 1_000_000
"""Of the first episode of every evaluation in training; those of `evaluate` have other seeds."""


@dataclass(frozen=True)
class Kept:
    """The policy that did best.

    Example: after 60,000 steps all ten episodes of CartPole had the full return:
        Kept(step=60_000, mean_return=500.0, parts={"online": MLP(…)})
    """

    step: int
    mean_return: float
    parts: Mapping[str, Any]
    """Copies of what `policy_parts` names."""


class Selection(Agent):
    """An agent whose `predict` acts with the best evaluated weights, where `eval_freq` asks for evaluations.

    Training goes on from the last weights and draws the same random numbers with evaluations as without. Steps of evaluations
    are counted apart (`evaluation_steps`). The last weights are not always the best: the greedy policy of values that are
    nearly equal changes in many states with every update (Schaul et al. 2022, arXiv 2206.00730). Rainbow reports its best
    snapshot (arXiv 1710.02298 §4), and Stable-Baselines3's EvalCallback saves it.
    """

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.kept: Kept | None = None
        self.evaluation_steps = 0
        """Steps of the environment in evaluations, beside `steps`."""

    def policy_parts(self) -> dict[str, Any]:
        """What `predict` acts with: networks and scales, each with `state_dict`."""
        raise NotImplementedError

    def acting(self) -> Mapping[str, Any]:
        """The parts that `predict` acts with: the kept ones, or without any those in training."""
        return self.policy_parts() if self.kept is None else self.kept.parts

    def improved(self, before: int, sums: MetricSums) -> None:
        """Evaluate, where `eval_freq` steps have passed or the budget is over."""
        every = self.settings.eval_freq
        if every is not None and (self.steps // every > before // every or self.finished()):
            self._select(sums)

    def _select(self, sums: MetricSums) -> None:
        kept, self.kept = self.kept, None  # what is evaluated are the weights in training
        try:
            found = evaluate(self, episodes=self.settings.n_eval_episodes, seed=SELECTION_SEED)
        finally:
            self.kept = kept
        self.evaluation_steps += sum(found.lengths)
        if kept is None or found.mean_return >= kept.mean_return:
            self.kept = Kept(self.steps, found.mean_return, copy.deepcopy(self.policy_parts()))
        sums.add("eval/selection/return", found.mean_return, 1)
        sums.maximum("eval/selection/steps", float(self.evaluation_steps))

    def state_dict(self) -> dict[str, Any]:
        kept = self.kept
        parts = {} if kept is None else {name: part.state_dict() for name, part in kept.parts.items()}
        best = None if kept is None else {"step": kept.step, "mean_return": kept.mean_return, "parts": parts}
        return {**super().state_dict(), "kept": best, "evaluation_steps": self.evaluation_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.evaluation_steps = int(state.get("evaluation_steps", 0))
        best, self.kept = state.get("kept"), None
        if best is not None:
            parts = copy.deepcopy(self.policy_parts())
            for name, part in parts.items():
                part.load_state_dict(best["parts"][name])
            self.kept = Kept(int(best["step"]), float(best["mean_return"]), parts)
