"""A model of a world: what may follow each action, with its probability. Exact values come from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import torch
from gymnasium.envs.toy_text.blackjack import BlackjackEnv
from torch import Tensor

from reinlm.classical.tabular import blackjack
from reinlm.errors import InputError
from reinlm.objectives import td_errors

IMPROPER = 100_000
"""Sweeps after which a policy's values are taken not to converge."""


@dataclass(frozen=True)
class Model:
    """Everything that may happen, padded with outcomes of probability 0. float64 on the CPU; S states, A actions, K outcomes.

    Example: one state, one action, which ends with reward 1 half of the time and stays otherwise:
        Model(
            probabilities=tensor([[[0.5, 0.5]]]), successors=tensor([[[0, 0]]]), rewards=tensor([[[1.0, 0.0]]]),
            terminated=tensor([[[True, False]]]), legal=tensor([[True]]), start=tensor([1.0]), shown=tensor([0]),
        )
    """

    probabilities: Tensor
    """[S, A, K]"""
    successors: Tensor
    """[S, A, K], rows."""
    rewards: Tensor
    """[S, A, K]"""
    terminated: Tensor
    """[S, A, K] bool."""
    legal: Tensor
    """[S, A] bool: the actions that a state has."""
    start: Tensor
    """[S]: where episodes begin."""
    shown: Tensor
    """[S]: the row that the observation of a state is; its own, where states are seen as they are."""

    def action_values(self, values: Tensor, discount: float) -> Tensor:
        """q(s,a) = Σ p(s',r|s,a) [ r + γ v(s') ], [S, A]; -inf for an action that the state has not.

        Sutton & Barto (2018) eq. 4.2.
        """
        zero = torch.zeros_like(self.rewards)
        backups = td_errors(self.rewards, zero, values[self.successors], self.terminated, gamma=discount)
        return (self.probabilities * backups).sum(-1).masked_fill(~self.legal, -torch.inf)

    def evaluate(self, policy: Tensor, discount: float, tolerance: float = 1e-12) -> Tensor:
        """The exact values [S] of a policy [S, A] of probabilities: the solution of v = r_π + γ P_π v.

        Where that has no single one, as for γ = 1 and a policy that does not end from some states, by sweeps from 0 until no
        value moves further than `tolerance`. Raises InputError where they do not converge. Sutton & Barto (2018) §4.1.
        """
        policy = policy[self.shown]
        states = len(policy)
        weights = policy[..., None] * self.probabilities
        rewards = (weights * self.rewards).sum((-1, -2))
        follow = torch.zeros(states, states, dtype=torch.float64)
        rows = torch.arange(states)[:, None, None].expand_as(self.successors)
        follow.index_put_((rows, self.successors), torch.where(self.terminated, 0.0, weights), accumulate=True)
        values, singular = torch.linalg.solve_ex(torch.eye(states, dtype=torch.float64) - discount * follow, rewards)
        off = (rewards + discount * follow @ values - values).abs().max()
        if not singular and float(off) <= 1e-9 * max(1.0, float(values.abs().max())):
            return values
        values = torch.zeros(states, dtype=torch.float64)
        for _ in range(IMPROPER):
            following = rewards + discount * follow @ values
            change = float((following - values).abs().max())
            values = following
            if change <= tolerance * max(1.0, float(values.abs().max())):
                return values
            if not change < 1e12 or float(values.abs().max()) > 1e9:
                break
        raise InputError(
            f"the values of this policy do not converge with discount={discount}: it never ends from some states",
            hint="set discount below 1, or take a policy that ends",
        )

    def uniform(self) -> Tensor:
        """The policy [S, A] that draws any legal action."""
        return self.legal.to(torch.float64) / self.legal.sum(-1, keepdim=True).clamp_min(1)

    def greedy(self, action_values: Tensor, tolerance: float = 1e-9) -> Tensor:
        """The policy [S, A] that shares its choice among the actions whose value is the highest, up to `tolerance`.

        With γ = 1 a single one of them may go round in circles for ever; all of them together end where any of them does.
        """
        best = action_values.amax(-1, keepdim=True)
        ties = self.legal & (action_values >= best - tolerance * best.abs().clamp_min(1.0))
        return ties.to(torch.float64) / ties.sum(-1, keepdim=True).clamp_min(1)


def model_of(env: gym.Env[Any, Any]) -> Model | None:
    """The model that an environment brings along as `P[state][action]`, or Blackjack's; None where there is none."""
    inner: Any = env.unwrapped
    if isinstance(inner, BlackjackEnv):
        outcomes, begin = blackjack.table(natural=bool(inner.natural), sab=bool(inner.sab))
        shown = torch.tensor(blackjack.shown())
        return replace(from_table(outcomes, torch.tensor(begin, dtype=torch.float64), actions=2), shown=shown)
    table: Mapping[int, Mapping[int, Sequence[Any]]] | None = getattr(inner, "P", None)
    if table is None:
        return None
    start = torch.zeros(int(inner.observation_space.n), dtype=torch.float64)
    if isinstance(getattr(inner, "start", None), dict):
        start[list(inner.start)] = torch.tensor(list(inner.start.values()), dtype=torch.float64)
    elif hasattr(inner, "initial_state_distrib"):
        start = torch.as_tensor(inner.initial_state_distrib, dtype=torch.float64)
    return from_table(table, start, actions=int(inner.action_space.n))


def from_table(table: Mapping[int, Mapping[int, Sequence[Any]]], start: Tensor, actions: int) -> Model:
    """A model from Gymnasium's `P[state][action] = [(probability, state, reward, terminated), …]`; missing actions are not
    legal."""
    states = len(start)
    longest = max(len(outcomes) for row in table.values() for outcomes in row.values())
    shape = (states, actions, longest)
    probabilities, rewards = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    successors, terminated = torch.zeros(shape, dtype=torch.long), torch.ones(shape, dtype=torch.bool)
    legal = torch.zeros(states, actions, dtype=torch.bool)
    for state, row in table.items():
        for action, outcomes in row.items():
            legal[state, action] = True
            for k, (probability, successor, reward, ends) in enumerate(outcomes):
                probabilities[state, action, k], rewards[state, action, k] = probability, reward
                successors[state, action, k], terminated[state, action, k] = int(successor), bool(ends)
    legal[~legal.any(-1), 0] = True  # a state that is the end: one action that leads nowhere and earns nothing
    return Model(probabilities, successors, rewards, terminated, legal, start, torch.arange(states))
