"""Bias and variance of returns: Monte Carlo, one step, n steps and λ, with a critic that is wrong on purpose.

    python studies/bias_variance.py --output runs/studies

The random walk of five states (Sutton & Barto, 2018, example 6.2): half a chance of either neighbour, 1 for leaving on the right,
0 on the left, γ = 1. Every return of the first state of an episode is an estimate of its value, which `Model.evaluate` gives
exactly. GAE (arXiv 1506.02438 eq. 16) plus the critic's value is the λ-return (Sutton & Barto, 2018, §12.1); λ = 1 is Monte
Carlo, λ = 0 one step. Returns are judged, not advantages G - V(s): those also carry the critic's error at s itself, which is the
same for all actions there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from figures import Curve, Panel, arguments, picture, save, table
from torch import Tensor
from walks import Walks, walk

from reinlm.classical.tabular.model import Model, model_of
from reinlm.classical.worlds import Outcome, TableWorld
from reinlm.objectives import gae, n_step_returns

LAMBDAS = (0.0, 0.5, 0.8, 0.9, 0.95, 1.0)
STEPS = (1, 2, 4, 8, 16)
LONGEST = 200
"""Steps after which no walk is left: cos(π/6)^200 is 3e-13."""
ERROR = (0.0, 0.3, 0.5, 0.2, 0.4, 0.3, 0.0)
"""The critic's value less the exact one, state by state; the ends are no states of a walk."""


class Walk5(TableWorld):
    """Example 6.2, from the middle. One action."""

    P: ClassVar[dict[int, dict[int, list[Outcome]]]] = {
        state: {0: [(0.5, state - 1, 0.0, state == 1), (0.5, state + 1, float(state == 5), state == 5)]}
        for state in range(1, 6)
    }
    start: ClassVar[dict[int, float]] = {3: 1.0}


@dataclass(frozen=True)
class Estimate:
    """What the return of the first state is as an estimate of its value, over many episodes."""

    name: str
    bias: float
    variance: float
    standard_error: float
    """Of the bias."""

    @property
    def mse(self) -> float:
        return self.bias**2 + self.variance


def world() -> tuple[Model, Tensor]:
    """The model and its exact values [S]."""
    model = model_of(Walk5())
    assert model is not None
    return model, model.evaluate(model.uniform(), 1.0)


def episodes(count: int, seed: int) -> Walks:
    """Episodes from the middle, all of them to the end."""
    model, _ = world()
    generator = torch.Generator().manual_seed(seed)
    found = walk(model, model.uniform(), torch.full((count,), 3), LONGEST, generator)
    assert bool(found.terminated[-1].all())
    return found


def lambda_estimate(walks: Walks, critic: Tensor, smoothing: float) -> Tensor:
    """GAE(λ) plus the critic's value, of each episode's first state."""
    values, following = critic[walks.states], critic[walks.following]
    advantages = gae(walks.rewards, values, following, walks.terminated, walks.uncut, gamma=1.0, gae_lambda=smoothing)
    return advantages[0] + values[0]


def n_step_estimate(walks: Walks, critic: Tensor, n: int) -> Tensor:
    """The n-step return of each episode's first state."""
    following = critic[walks.following]
    return n_step_returns(walks.rewards, following, walks.terminated, walks.uncut, gamma=1.0, n=n)[0]


def judge(name: str, returns: Tensor, exact: float) -> Estimate:
    """Bias and variance of the returns [B] of the first state."""
    variance = float(returns.var(correction=1))
    return Estimate(name, float(returns.mean()) - exact, variance, (variance / len(returns)) ** 0.5)


def measure(
    walks: Walks, scale: float, lambdas: Sequence[float] = LAMBDAS, steps: Sequence[int] = STEPS
) -> list[Estimate]:
    """λ-returns, then n-step returns, with a critic whose error is `scale` times ERROR."""
    _, exact = world()
    critic = exact + scale * torch.tensor(ERROR, dtype=torch.float64)
    target = float(exact[3])
    found = [judge(f"λ = {x:g}", lambda_estimate(walks, critic, x), target) for x in lambdas]
    return found + [judge(f"n = {n}", n_step_estimate(walks, critic, n), target) for n in steps]


def main() -> None:
    given = arguments(__doc__)
    walks = episodes(2_000 if given.quick else 20_000, seed=0)
    rows = []
    for label, scale in (("wrong", 1.0), ("exact", 0.0)):
        for found in measure(walks, scale):
            bias = f"{found.bias:+.4f} ± {found.standard_error:.4f}"
            rows.append([label, found.name, bias, *(f"{x:.4f}" for x in (found.bias**2, found.variance, found.mse))])
    print(table(["critic", "return", "bias ± standard error", "bias²", "variance", "MSE"], rows))
    fine = [*(i / 20 for i in range(18)), *(i / 100 for i in range(90, 101))]
    curves = {scale: measure(walks, scale, fine, steps=()) for scale in (0.0, 0.5, 1.0, 1.5, 2.5)}
    best = [(scale, *min(zip(found, fine, strict=True), key=lambda x: x[0].mse)) for scale, found in curves.items()]
    shown = [[f"× {scale:g}", f"{smoothing:g}", f"{found.mse:.4f}"] for scale, found, smoothing in best]
    print("\n" + table(["error of the critic", "λ of the least MSE", "that MSE"], shown))
    save(given.output, "bias_variance.svg", _plot(fine, curves))


def _plot(lambdas: Sequence[float], curves: dict[float, list[Estimate]]) -> str:
    parts = {
        "bias²": [found.bias**2 for found in curves[1.0]],
        "variance": [found.variance for found in curves[1.0]],
        "MSE": [found.mse for found in curves[1.0]],
    }
    errors = {f"error × {scale:g}": [estimate.mse for estimate in found] for scale, found in curves.items()}
    left, right = (
        [Curve(name, list(zip(lambdas, values, strict=True))) for name, values in lines.items()]
        for lines in (parts, errors)
    )
    ticks = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    return picture(
        [
            Panel("A critic that is too hopeful", "λ", left, ticks, (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)),
            Panel(
                "MSE, by how wrong the critic is",
                "λ",
                right,
                ticks,
                (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5),
                legend=(0.6, 0.02),
            ),
        ]
    )


if __name__ == "__main__":
    main()
