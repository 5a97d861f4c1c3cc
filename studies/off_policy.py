"""Why one-step Q-learning needs no importance weights, and learning from several steps of another policy does.

    python studies/off_policy.py --output runs/studies

A slippery corridor of five cells: left or right, one time in five the other way; 1 for leaving on the right, γ = 0.95. To go
right is best; the behaviour goes left four times in five, and the policy to be evaluated right nine times in ten.

    Q(S_0,A_0) ← R_0 + γ max_a Q(S_1,a)                          A_0 is given, and no other action of the behaviour is in it
    Q(S_0,A_0) ← R_0 + γ R_1 + γ² R_2 + γ³ max_a Q(S_3,a)        A_1 and A_2 are the behaviour's
    V(S_0)     ← R_0 + γ V(S_1)                                  so is A_0

Sutton & Barto (2018) §6.5 and §7.3. Every learner is a table that sees the same windows of three steps, from any cell, with step
sizes (N + 20)^-0.6. The limit is a fixed point that the model gives exactly. Weighed returns are those of V-trace (IMPALA,
arXiv 1802.01561) without caps; with caps of 1 they evaluate the policy ∝ min(b, π) (its eq. 3).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from figures import COLOURS, Curve, Panel, arguments, picture, save, table
from torch import Tensor
from walks import Walks, walk

from reinlm.classical import QLearning, ValueIteration
from reinlm.classical.tabular.model import Model, model_of
from reinlm.classical.worlds import Outcome, TableWorld
from reinlm.objectives import n_step_returns, td_errors, vtrace

DISCOUNT, N, START, CELLS = 0.95, 3, 3, 7


def _outcomes(action: int, cell: int) -> list[Outcome]:
    sides = [(cell - 1, 0.0, cell == 1), (cell + 1, float(cell == 5), cell == 5)]
    return [(0.8 if side == action else 0.2, *sides[side]) for side in (0, 1)]


class Corridor(TableWorld):
    """Five cells from 1 to 5, from the middle; 0 and 6 are the ends. Actions: left, right."""

    P: ClassVar[dict[int, dict[int, list[Outcome]]]] = {
        cell: {action: _outcomes(action, cell) for action in (0, 1)} for cell in range(1, 6)
    }
    start: ClassVar[dict[int, float]] = {START: 1.0}


def corridor() -> Model:
    """The world's model."""
    model = model_of(Corridor())
    assert model is not None
    return model


BEHAVIOUR = torch.tensor([[0.8, 0.2]] * CELLS, dtype=torch.float64)
TARGET = torch.tensor([[0.1, 0.9]] * CELLS, dtype=torch.float64)
BETWEEN = torch.minimum(BEHAVIOUR, TARGET) / torch.minimum(BEHAVIOUR, TARGET).sum(-1, keepdim=True)
"""What V-trace with caps of 1 evaluates."""

Rule = Callable[[Walks, Tensor], Tensor]
"""(windows [N, B], tables [B, S, A] or [B, S]) -> what the first state, or pair, of each window is told to be worth [B]."""


def plain(n: int) -> Rule:
    """n rewards of the behaviour and the value after them: Q-learning where n = 1 and the table is Q."""

    def rule(windows: Walks, table: Tensor) -> Tensor:
        steps = windows.rewards, _at(_values(table), windows.following), windows.terminated, windows.uncut
        return n_step_returns(*steps, gamma=DISCOUNT, n=n)[0]

    return rule


def q_weighed(windows: Walks, q: Tensor) -> Tensor:
    """R_0 + γ v_1, where v_1 is the value of S_1 under the greedy policy, from the weighed steps after it."""
    greedy = torch.nn.functional.one_hot(q.argmax(-1), 2).to(torch.float64)
    later = torch.arange(len(q)), windows.states[1:], windows.actions[1:]
    log_ratios = greedy[later].log() - BEHAVIOUR[later[1:]].log()
    v = _values(q)
    values, _ = vtrace(
        log_ratios, windows.rewards[1:], _at(v, windows.states[1:]), _at(v, windows.following[1:]),
        windows.terminated[1:], windows.uncut[1:], gamma=DISCOUNT, value_cap=math.inf, trace_cap=math.inf,
    )  # fmt: skip
    zero = torch.zeros_like(values[0])
    return td_errors(windows.rewards[0], zero, values[0], windows.terminated[0], gamma=DISCOUNT)


def v_weighed(n: int, cap: float = math.inf) -> Rule:
    """n steps with the ratio of each, up to the cap, and V."""

    def rule(windows: Walks, v: Tensor) -> Tensor:
        log_ratios = (TARGET.log() - BEHAVIOUR.log())[windows.states, windows.actions]
        values, following = _at(v, windows.states), _at(v, windows.following)
        steps = (log_ratios, windows.rewards, values, following, windows.terminated, windows.uncut)
        return vtrace(*(x[:n] for x in steps), gamma=DISCOUNT, value_cap=cap, trace_cap=cap)[0][0]

    return rule


def _values(table: Tensor) -> Tensor:
    """max_a Q, or V as it is: [B, S]."""
    return table.amax(-1) if table.dim() == 3 else table


def _at(values: Tensor, states: Tensor) -> Tensor:
    """The values [B, S] of every learner at its own states [T, B]."""
    return values[torch.arange(len(values)), states]


@dataclass(frozen=True)
class Study:
    """A rule, what it learns, the value that is wanted of it and the one that it comes to."""

    name: str
    rule: Rule
    pairs: bool
    """Whether its table is Q, and else V."""
    wanted: float
    limit: float


def studies() -> list[Study]:
    """All rules with their exact values of the start."""
    model = corridor()
    planner = ValueIteration(Corridor, discount=DISCOUNT).learn()
    best = planner.start_value()
    right, between, left = (float(model.evaluate(policy, DISCOUNT)[START]) for policy in (TARGET, BETWEEN, BEHAVIOUR))
    return [
        Study("Q, one step", plain(1), True, best, best),
        Study("Q, three steps", plain(N), True, best, uncorrected_limit(model)),
        Study("Q, three steps, weighed", q_weighed, True, best, best),
        Study("V, one step", plain(1), False, right, left),
        Study("V, three steps", plain(N), False, right, left),
        Study("V, one step, weighed", v_weighed(1), False, right, right),
        Study("V, three steps, weighed", v_weighed(N), False, right, right),
        Study("V, three steps, caps of 1", v_weighed(N, 1.0), False, right, between),
    ]


def uncorrected_limit(model: Model) -> float:
    """Where Q of three uncorrected steps ends: one action, two of the behaviour, and then the maximum, over and over."""
    q = torch.zeros(CELLS, 2, dtype=torch.float64)
    for _ in range(1_000):
        v = q.amax(-1)
        for _ in range(N - 1):
            v = (BEHAVIOUR * model.action_values(v, DISCOUNT).nan_to_num(neginf=0.0)).sum(-1)
        q = model.action_values(v, DISCOUNT).nan_to_num(neginf=0.0)
    return float(q[START].max())


def learn(chosen: list[Study], updates: int, learners: int, seed: int) -> Tensor:
    """The start's value after each update, [updates, studies, learners]; all studies see the same windows."""
    model, generator, every = corridor(), torch.Generator().manual_seed(seed), torch.arange(learners)
    tables = [torch.zeros((learners, CELLS, 2) if x.pairs else (learners, CELLS), dtype=torch.float64) for x in chosen]
    counts = [torch.zeros_like(values) for values in tables]
    found = []
    for _ in range(updates):
        starts = torch.randint(1, 6, (learners,), generator=generator)
        windows = walk(model, BEHAVIOUR, starts, N, generator)
        for study, values, count in zip(chosen, tables, counts, strict=True):
            at = (every, starts, windows.actions[0]) if study.pairs else (every, starts)
            count[at] += 1.0
            values[at] += (20.0 + count[at]) ** -0.6 * (study.rule(windows, values) - values[at])
        found.append(torch.stack([_values(values)[:, START] for values in tables]))
    return torch.stack(found)


def agent(seed: int, episodes: int) -> float:
    """The library's Q-learning while any action is drawn, at a constant step size: its value of the start."""
    learned = QLearning(Corridor, seed=seed, discount=DISCOUNT, epsilon=1.0, step_size=0.02).learn(episodes=episodes)
    return max(learned.values(START))


def main() -> None:
    given = arguments(__doc__)
    updates, learners, seeds = (1_000, 20, 2) if given.quick else (20_000, 200, 20)
    chosen = studies()
    found = learn(chosen, updates, learners, seed=0)
    rows = [
        _row(study.name, study.wanted, study.limit, last.tolist())
        for study, last in zip(chosen, found[-1], strict=True)
    ]
    values = [agent(seed, updates // 10) for seed in range(seeds)]
    rows.append(_row("QLearning, any action at random", chosen[0].wanted, chosen[0].limit, values))
    print(table(["learner", "wanted", "limit", "mean", "bias ± standard error", "deviation of a learner"], rows))
    save(given.output, "off_policy.svg", _plot(chosen, found.mean(-1)))


def _row(name: str, wanted: float, limit: float, found: list[float]) -> list[str]:
    mean, deviation = statistics.fmean(found), statistics.stdev(found)
    bias = f"{mean - wanted:+.4f} ± {deviation / len(found) ** 0.5:.4f}"
    return [name, f"{wanted:.4f}", f"{limit:.4f}", f"{mean:.4f}", bias, f"{deviation:.4f}"]


def _plot(chosen: list[Study], means: Tensor) -> str:
    """Means against updates, the limits dashed."""
    updates = len(means)
    ticks, heights = tuple(updates * i / 4 for i in range(5)), (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    panels = []
    for title, pairs in (("Control: max Q at the start", True), ("Prediction: V at the start", False)):
        curves = []
        mine = [(study, means[:, i]) for i, study in enumerate(chosen) if study.pairs == pairs]
        for colour, (study, line) in zip(COLOURS, mine, strict=False):
            points = [(t, float(line[t])) for t in range(0, updates, max(updates // 200, 1))]
            curves.append(Curve(study.name[3:], points, colour=colour))
            curves.append(Curve("", [(0, study.limit), (updates, study.limit)], dashed=True, colour=colour))
        panels.append(Panel(title, "updates", curves, ticks, heights, legend=(0.5, 0.5)))
    return picture(panels)


if __name__ == "__main__":
    main()
