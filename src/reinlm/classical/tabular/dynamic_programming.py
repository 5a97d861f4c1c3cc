"""Dynamic programming: the exact answer, from a model of the world instead of steps in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field

from reinlm.classical.budget import Budget
from reinlm.classical.registry import named
from reinlm.classical.tabular.model import IMPROPER, Model, model_of
from reinlm.classical.tabular.table import TableAgent, TableSettings
from reinlm.errors import InputError
from reinlm.runs import MetricSums


class PlanningSettings(TableSettings):
    """How exact the values are to be."""

    tolerance: float = Field(1e-12, gt=0)
    """The largest change of a last sweep, relative to the largest value (or to 1)."""


class Planner(TableAgent):
    """An agent that reads the world's model (`P[state][action]`) and takes no step in it.

    Raises InputError for an environment without a model.
    """

    Settings = PlanningSettings
    units = ("sweeps",)

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        model = model_of(self.env)
        if model is None:
            raise InputError(
                f"{self.name} needs a model, and {self.env_name} has none",
                hint="take an environment that has a table P[state][action], or an algorithm that learns from steps",
            )
        self.model: Model = model
        self.sweeps = 0
        self.converged = False
        self.v = torch.full((self.states,), float(self.settings.initial), dtype=torch.float64)
        """[S] the values found."""
        self.best = self.model.uniform()
        """[S, A] the policy found; equals share the choice."""

    def begin(self, steps: float | None = None, *, episodes: float | None = None) -> Budget:
        """It ends when its values do not move any more. Raises InputError for a budget."""
        if steps is not None or episodes is not None:
            raise InputError(f"{self.name} takes no steps: it sweeps over the model until its values converge")
        self.budget = Budget("sweeps", 0, 1)
        return self.budget

    @property
    def done(self) -> int:
        return int(self.converged)

    def act(self, observation: Any, deterministic: bool) -> int:
        """The first action of the policy found, or any of those that are equally good."""
        row = self.row_of(observation)
        if deterministic:
            return int(self.best[row].argmax()) + self.first_action
        return int(self.rng.choice(self.actions, p=self.best[row].numpy())) + self.first_action

    def start_value(self) -> float:
        """The exact value of the policy found, over where episodes begin."""
        return float(self.model.start @ self.v)

    def _learned(self, values: torch.Tensor) -> None:
        self.v = values
        q = self.model.action_values(values, self.settings.discount)
        self.q = q.numpy().copy()
        self.best = self.model.greedy(q)
        self.converged = True

    def state_dict(self) -> dict[str, Any]:
        mine = {"v": self.v, "best": self.best, "sweeps": self.sweeps, "converged": self.converged}
        return {**super().state_dict(), **mine}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.v, self.best = state["v"], state["best"]
        self.sweeps, self.converged = int(state["sweeps"]), bool(state["converged"])


@named(
    "policy_iteration",
    family="model",
    actions="discrete",
    equation="v ← v_π;   π(s) ← argmax_a Σ p(s',r|s,a) [r + γ v(s')]",
    source="Howard (1960); Sutton & Barto (2018) §4.3",
    use="the exact answer where the model is known: few improvements, each evaluated to the end",
)
class PolicyIteration(Planner):
    """v ← v_π, then π(s) ← argmax_a Σ p(s',r|s,a) [ r + γ v(s') ], until π does not change. Sutton & Barto (2018) §4.3.

    Begins with the policy that draws any action, which ends wherever an end can be reached; equals share the choice, so that
    with γ = 1 no improvement is a policy that goes round in circles.
    """

    def improve(self, sums: MetricSums) -> None:
        """To the end."""
        discount, tolerance = self.settings.discount, self.settings.tolerance
        policy = self.model.uniform()
        while True:
            values = self.model.evaluate(policy, discount, tolerance)
            self.sweeps += 1
            better = self.model.greedy(self.model.action_values(values, discount))
            if torch.equal(better, policy):
                break
            policy = better
        sums.maximum("sweeps", float(self.sweeps))
        self._learned(values)


@named(
    "value_iteration",
    family="model",
    actions="discrete",
    equation="v(s) ← max_a Σ p(s',r|s,a) [r + γ v(s')]",
    source="Bellman (1957); Sutton & Barto (2018) §4.4",
    use="the exact answer where the model is known: many cheap sweeps",
)
class ValueIteration(Planner):
    """v(s) ← max_a Σ p(s',r|s,a) [ r + γ v(s') ] for all s, until no value moves. Sutton & Barto (2018) §4.4."""

    def improve(self, sums: MetricSums) -> None:
        """To the end. Raises InputError where the values grow without end."""
        values, change = self.v, float("inf")
        while change > self.settings.tolerance * max(1.0, float(values.abs().max())):
            following = self.model.action_values(values, self.settings.discount).amax(-1)
            change = float((following - values).abs().max())
            values = following
            self.sweeps += 1
            if self.sweeps >= IMPROPER or not change < 1e12:
                raise InputError(
                    f"the values of {self.env_name} do not converge with discount={self.settings.discount}",
                    hint="set discount below 1",
                )
        sums.maximum("sweeps", float(self.sweeps))
        self._learned(values)
