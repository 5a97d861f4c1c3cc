"""TD prediction: what a policy is worth, from one step, n steps or the λ-return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from reinlm.classical.registry import named
from reinlm.classical.tabular.table import TableAgent, TableSettings
from reinlm.errors import InputError
from reinlm.objectives import lambda_returns, n_step_returns, td_errors
from reinlm.runs import MetricSums


class PredictionSettings(TableSettings):
    step_size: float = Field(0.1, gt=0, le=1)
    """α."""
    n: int | None = Field(None, ge=1)
    """Steps before the bootstrap; 1 where neither it nor smoothing is given."""
    smoothing: float | None = Field(None, ge=0, le=1)
    """λ: the λ-return instead. 1 is Monte Carlo."""

    @model_validator(mode="after")
    def _one_of_them(self) -> PredictionSettings:
        if self.n is not None and self.smoothing is not None:
            raise ValueError("n and smoothing are two kinds of return; give one of them")
        return self


@named(
    "td",
    family="table",
    actions="discrete",
    equation="V(S) ← V(S) + α [G - V(S)],   G = R + γ V(S'), the n-step return or the λ-return",
    source="Sutton (1988); Sutton & Barto (2018) §§6.1, 7.1, 12.1",
    use="the value of a policy that is given: any action at random, or probabilities [S, A] from Python",
)
class TD(TableAgent):
    """V(S_t) ← V(S_t) + α [ G_t - V(S_t) ].

        one step    G_t = R_t + γ V(S_{t+1}), at once                      Sutton & Barto (2018) §6.1
        n steps     G_t = R_t + … + γ^{n-1} R_{t+n-1} + γ^n V(S_{t+n})     §7.1
        λ-return    G_t = (1 - λ) Σ_n λ^{n-1} G_{t:t+n}                    §12.1

    The last two are formed when the episode is over, from the values at its beginning. `v` [S] holds the values.
    """

    Settings = PredictionSettings

    def __init__(
        self,
        *given: Any,
        policy: Sequence[Sequence[float]] | np.ndarray | Tensor | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*given, **settings)
        self.v = np.full(self.states, float(self.settings.initial))
        uniform = [[float(a in legal) / len(legal) for a in range(self.actions)] for legal in self.legal]
        self.followed = np.asarray(uniform if policy is None else policy, dtype=np.float64)
        if self.followed.shape != self.q.shape:
            raise InputError(f"policy has shape {self.followed.shape}, not {self.q.shape}: a row for each state")

    def explore(self, row: int) -> int:
        """The policy that is evaluated."""
        return int(
            np.searchsorted(self.followed[row].cumsum(), self.rng.random(), side="right").clip(max=self.actions - 1)
        )

    def act(self, observation: Any, deterministic: bool) -> int:
        """An action of the policy that is evaluated: its likeliest, or one drawn from it."""
        row = self.row_of(observation)
        return (int(self.followed[row].argmax()) if deterministic else self.explore(row)) + self.first_action

    def improve(self, sums: MetricSums) -> None:
        """One episode."""
        settings = self.settings
        online = settings.smoothing is None and (settings.n or 1) == 1
        row, over = self.reset(), False
        rows, rewards, ends = [row], [], []
        while not over:
            reward, following, terminated, truncated = self.step(self.explore(row))
            if online:
                error = td_errors(
                    reward, float(self.v[row]), float(self.v[following]), terminated, gamma=settings.discount
                )
                self.v[row] += settings.step_size * error
                sums.add("td_error", abs(error), 1)
            rows.append(following)
            rewards.append(reward)
            ends.append((terminated, truncated))
            row, over = following, terminated or truncated
        if not online:
            errors = self._returns(rows[1:], rewards, ends) - self.v[rows[:-1]]
            np.add.at(self.v, rows[:-1], settings.step_size * errors)
            sums.add("td_error", float(np.abs(errors).sum()), len(errors))

    def _returns(self, following: list[int], rewards: list[float], ends: list[tuple[bool, bool]]) -> np.ndarray:
        """G_t of every step of an episode."""
        settings = self.settings
        terminated, truncated = torch.tensor(ends).unbind(-1)
        steps = torch.tensor(rewards, dtype=torch.float64), torch.from_numpy(self.v[following]), terminated, truncated
        if settings.smoothing is not None:
            found = lambda_returns(*steps, gamma=settings.discount, gae_lambda=settings.smoothing)
        else:
            found = n_step_returns(*steps, gamma=settings.discount, n=settings.n)
        returns: np.ndarray = found.numpy()
        return returns

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "v": self.v.copy(), "followed": self.followed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.v, self.followed = state["v"].copy(), state["followed"]
