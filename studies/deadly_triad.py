"""The deadly triad: function approximation, bootstrapping and off-policy data diverge together, and no two of them do.

    python studies/deadly_triad.py --output runs/studies

Baird's counterexample (Sutton & Barto, 2018, §11.2): seven states, eight weights, V(s) = 2 w_s + w_8 for the upper six and
w_7 + 2 w_8 for the seventh. The behaviour draws "dashed", to any of the upper six, with 6/7, and "solid", to the seventh, with
1/7; the target always takes solid. Rewards are 0, γ = 0.99, α = 0.01: the right values are 0, and the features can say so.

    w ← w + α Σ_s d(s) [ E(G | s) - V(s) ] ∇V(s)

is the expected update (their figure 11.2, right), in which nothing is random. G is a one-step return, weighed by ρ = π/b where
the data are the behaviour's, or a λ-return of the target. The sampled update (left) takes one step of the behaviour at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from figures import COLOURS, Curve, Panel, arguments, picture, save, table
from torch import Tensor
from walks import walk

from reinlm.classical.tabular.model import Model, model_of
from reinlm.classical.worlds import Outcome, TableWorld
from reinlm.objectives import lambda_returns, vtrace

DISCOUNT, STEP_SIZE = 0.99, 0.01
HORIZON = 1_000
"""Steps after which an episode of the target ends, for returns of more than one step; 0.99^1000 is 4e-5."""
MILESTONES = (1_000, 100_000)
LAMBDAS = (0.0, 0.5, 0.8, 0.9, 0.95, 1.0)

Update = Callable[[Tensor], Tensor]
"""The weights before a sweep -> after it."""


class Baird(TableWorld):
    """Figure 11.1: actions 0 dashed, 1 solid; it never ends."""

    P: ClassVar[dict[int, dict[int, list[Outcome]]]] = {
        state: {0: [(1 / 6, upper, 0.0, False) for upper in range(6)], 1: [(1.0, 6, 0.0, False)]} for state in range(7)
    }
    start: ClassVar[dict[int, float]] = dict.fromkeys(range(7), 1 / 7)


def baird() -> Model:
    """The world's model."""
    model = model_of(Baird())
    assert model is not None
    return model


BEHAVIOUR = torch.tensor([[6 / 7, 1 / 7]] * 7, dtype=torch.float64)
TARGET = torch.tensor([[0.0, 1.0]] * 7, dtype=torch.float64)
UNIFORM = torch.full((7,), 1 / 7, dtype=torch.float64)
"""Where the behaviour is, and how states are weighed in a value error."""
ON_TARGET = torch.tensor([(1 - DISCOUNT) / 7] * 6 + [1 - 6 * (1 - DISCOUNT) / 7], dtype=torch.float64)
"""Where the target is, from a uniform start that comes back with probability 1 - γ a step."""
FEATURES = torch.zeros(7, 8, dtype=torch.float64)
FEATURES[range(6), range(6)], FEATURES[:6, 7] = 2.0, 1.0
FEATURES[6, 6], FEATURES[6, 7] = 1.0, 2.0
START = torch.tensor([1.0] * 6 + [10.0, 1.0], dtype=torch.float64)
TABLE = torch.eye(7, dtype=torch.float64)
"""A weight for each state: no function approximation."""


def one_step(features: Tensor, states: Tensor, behaviour: Tensor, target: Tensor) -> Update:
    """Semi-gradient TD(0) with importance ratios, in expectation over `states` [S] and everything that may follow."""
    model = baird()
    at = torch.arange(7)[:, None, None].expand_as(model.probabilities)
    chance = states[:, None, None] * behaviour[:, :, None] * model.probabilities
    log_ratios = (target.log() - behaviour.log())[:, :, None].expand_as(chance)
    seen = chance > 0.0
    rows, weights = at[seen], chance[seen]
    rewards, following, ends = model.rewards[seen], model.successors[seen], model.terminated[seen]

    def update(w: Tensor) -> Tensor:
        values = features @ w
        goals = _td_targets(log_ratios[seen], rewards, values[rows], values[following], ends)
        return w + STEP_SIZE * features[rows].T @ (weights * (goals - values[rows]))

    return update


def many_steps(features: Tensor, smoothing: float) -> Update:
    """The λ-return of the target from every state, weighed as the behaviour visits them; λ = 1 does not bootstrap.

    The target and its world leave nothing to chance, so that one episode from each state is the expectation.
    """
    walks = walk(baird(), TARGET, torch.arange(7), HORIZON, torch.Generator().manual_seed(0))
    ends = walks.terminated.index_fill(0, torch.tensor([HORIZON - 1]), True)

    def update(w: Tensor) -> Tensor:
        values = features @ w
        goals = lambda_returns(
            walks.rewards, values[walks.following], ends, walks.uncut, gamma=DISCOUNT, gae_lambda=smoothing
        )[0]
        return w + STEP_SIZE * features.T @ (UNIFORM * (goals - values))

    return update


def sampled(features: Tensor, w: Tensor, target: Tensor, steps: int, seeds: int) -> Tensor:
    """‖w‖ [steps + 1, seeds] of semi-gradient TD(0) on single steps of the behaviour, one walk a seed."""
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(7, (seeds,), generator=generator)
    walks = walk(baird(), BEHAVIOUR, starts, steps, generator)
    log_ratios = (target.log() - BEHAVIOUR.log())[walks.states, walks.actions]
    w = w.repeat(seeds, 1)
    norms = [w.norm(dim=-1)]
    for t in range(steps):
        gradients, after = features[walks.states[t]], features[walks.following[t]]
        values, following = (gradients * w).sum(-1), (after * w).sum(-1)
        goals = _td_targets(log_ratios[t], walks.rewards[t], values, following, walks.terminated[t])
        w = w + STEP_SIZE * (goals - values)[:, None] * gradients
        norms.append(w.norm(dim=-1))
    return torch.stack(norms)


def _td_targets(log_ratios: Tensor, rewards: Tensor, values: Tensor, following: Tensor, ends: Tensor) -> Tensor:
    """V + ρ (R + γ V' - V): V-trace with λ = 0 and no cap. Sutton & Barto (2018) eq. 11.2."""
    steps = (x[None] for x in (log_ratios, rewards, values, following, ends, torch.zeros_like(ends)))
    return vtrace(*steps, gamma=DISCOUNT, gae_lambda=0.0, value_cap=math.inf)[0][0]


@dataclass(frozen=True)
class Variant:
    """What learns, and from where it starts."""

    name: str
    features: Tensor
    start: Tensor
    update: Update

    @cached_property
    def matrix(self) -> Tensor:
        """The matrix of a sweep: rewards are 0, so a sweep is linear in w."""
        return torch.stack([self.update(row) for row in torch.eye(len(self.start), dtype=torch.float64)], dim=1)

    def after(self, sweeps: int) -> Tensor:
        """The weights after so many sweeps."""
        return torch.linalg.matrix_power(self.matrix, sweeps) @ self.start

    def error(self, sweeps: int) -> float:
        """Root mean square of the values, which should be 0."""
        return float((self.features @ self.after(sweeps)).square().mean().sqrt())

    def growth(self) -> float:
        """The largest factor by which a sweep stretches a direction in the end; above 1 it diverges."""
        return float(torch.linalg.eigvals(self.matrix).abs().max())


def variants() -> list[Variant]:
    """The triad, and what is left of it without each leg."""
    values = FEATURES @ START
    off = one_step(FEATURES, UNIFORM, BEHAVIOUR, TARGET)
    return [
        Variant("all three", FEATURES, START, off),
        Variant("a table instead of features", TABLE, values, one_step(TABLE, UNIFORM, BEHAVIOUR, TARGET)),
        Variant("no bootstrapping (λ = 1)", FEATURES, START, many_steps(FEATURES, 1.0)),
        Variant("the target's own data", FEATURES, START, one_step(FEATURES, ON_TARGET, TARGET, TARGET)),
        Variant("the behaviour's own values", FEATURES, START, one_step(FEATURES, UNIFORM, BEHAVIOUR, BEHAVIOUR)),
    ]


def main() -> None:
    given = arguments(__doc__)
    steps, seeds = (200, 3) if given.quick else (1_000, 20)
    milestones = (0, *MILESTONES)
    rows = [
        [v.name, f"{v.growth():.6f}", *(f"{v.after(n).norm():.4g}, {v.error(n):.2g}" for n in milestones)]
        for v in variants()
    ]
    print(table(["expected update", "growth a sweep", *(f"‖w‖, value error after {n:,}" for n in milestones)], rows))
    growths = [[f"{x:g}", f"{Variant('', FEATURES, START, many_steps(FEATURES, x)).growth():.6f}"] for x in LAMBDAS]
    print("\n" + table(["λ of the target's return", "growth a sweep"], growths))
    runs = {
        "all three": sampled(FEATURES, START, TARGET, steps, seeds),
        "a table instead of features": sampled(TABLE, FEATURES @ START, TARGET, steps, seeds),
        "the behaviour's own values": sampled(FEATURES, START, BEHAVIOUR, steps, seeds),
    }
    spread = [[name, *(f"{x:.4g}" for x in (r[-1].min(), r[-1].median(), r[-1].max()))] for name, r in runs.items()]
    print(f"\n‖w‖ after {steps:,} sampled steps, {seeds} seeds")
    print("\n" + table(["sampled update", "least", "median", "most"], spread))
    save(given.output, "deadly_triad.svg", _plot(steps, runs))


def _plot(steps: int, runs: dict[str, Tensor]) -> str:
    every = range(0, steps + 1, 10)
    norms = [Curve(v.name, [(n, float(v.after(n).norm())) for n in every]) for v in variants()]
    errors = [Curve(v.name, [(n, v.error(n)) for n in every]) for v in variants()]
    colours = {curve.name: COLOURS[index] for index, curve in enumerate(norms)}
    drawn = [
        Curve("" if seed else name, [(n, float(found[n, seed])) for n in every], colour=colours[name])
        for name, found in runs.items()
        for seed in range(found.shape[1])
    ]
    ticks, heights = tuple(steps * i / 5 for i in range(6)), (1.0, 10.0, 100.0, 1_000.0, 10_000.0)
    return picture(
        [
            Panel("‖w‖, expected updates", "sweep", norms, ticks, heights, log=True),
            Panel("Value error, expected updates", "sweep", errors, ticks, (0.1, *heights), log=True),
            Panel(f"‖w‖, sampled steps, {len(drawn) // len(runs)} seeds", "step", drawn, ticks, heights, log=True),
        ]
    )


if __name__ == "__main__":
    main()
