"""On-policy against off-policy on a cliff: what is earned while exploring, and the path that is learned.

    python studies/cliff.py --output runs/studies

Sutton & Barto (2018), example 6.6: -1 a step, -100 and back to the start for a fall, ε-greedy with ε = 0.1 throughout, γ = 1.
SARSA and expected SARSA learn what their exploring policy is worth, Q-learning what the greedy one is. Two lines that no run
decides stand beside them, from the world's model: the best value of the start that any ε-soft policy has, which bounds what can
be earned while exploring (§5.4), and the value of exploring around the shortest path, which is what Q-learning comes to.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from figures import COLOURS, HIGH, WIDE, Curve, Panel, arguments, picture, save, table
from torch import Tensor

from reinlm.classical import SARSA, ExpectedSARSA, QLearning
from reinlm.classical.environments import make
from reinlm.classical.tabular.model import Model, model_of
from reinlm.classical.tabular.table import TDControl

ENV = "CliffWalking-v1"
EPSILON = 0.1
AGENTS: dict[str, tuple[type[TDControl], float]] = {
    "SARSA": (SARSA, 0.1),
    "expected SARSA": (ExpectedSARSA, 1.0),
    "Q-learning": (QLearning, 0.5),
}
"""The agent and its step size α."""
ROWS, COLUMNS = 4, 12
LAST = 100
"""Episodes at the end of a run that its online return is the mean of."""


@dataclass(frozen=True)
class Run:
    """One agent with one seed."""

    returns: list[float]
    """Of every episode, while exploring."""
    path: tuple[int, ...]
    """The states of the greedy policy from the start, up to the goal or for at most 48 steps."""
    soft_value: float
    """The exact value of the start under the ε-greedy policy learned."""

    @property
    def online(self) -> float:
        return statistics.fmean(self.returns[-LAST:])

    @property
    def distance(self) -> int:
        """Rows between the cliff and the path where it passes the cliff: 1 is the edge."""
        return min(3 - state // COLUMNS for state in self.path if 0 < state % COLUMNS < COLUMNS - 1)


def cliff() -> Model:
    """The world's model."""
    model = model_of(make(ENV))
    assert model is not None
    return model


def soft_optimum(model: Model, epsilon: float) -> Tensor:
    """[S] v(s) = (1 - ε) max_a q(s,a) + ε mean_a q(s,a): the best values of any ε-soft policy. Sutton & Barto (2018) §5.4."""
    values = torch.zeros(len(model.start), dtype=torch.float64)
    change = 1.0
    while change > 1e-12:
        q = model.action_values(values, 1.0)
        following = (1.0 - epsilon) * q.amax(-1) + epsilon * q.mean(-1)
        change = float((following - values).abs().max())
        values = following
    return values


def soft_value(model: Model, action_values: Tensor, epsilon: float) -> float:
    """The exact value of the start under the policy that is ε-greedy for these action values."""
    policy = (1.0 - epsilon) * model.greedy(action_values) + epsilon * model.uniform()
    return float(model.start @ model.evaluate(policy, 1.0))


def shortest_path_value(model: Model, epsilon: float) -> float:
    """The exact value of exploring around the shortest path: ε-greedy for the optimal action values."""
    return soft_value(model, model.action_values(soft_optimum(model, 0.0), 1.0), epsilon)


def learn(name: str, seed: int, episodes: int) -> Run:
    """One agent from the start."""
    kind, step_size = AGENTS[name]
    agent = kind(ENV, seed=seed, epsilon=EPSILON, step_size=step_size).learn(episodes=episodes)
    model = cliff()
    greedy, state = agent.policy(), int(model.start.argmax())
    path, over = [state], False
    while not over and len(path) < ROWS * COLUMNS:
        at = state, greedy[state], 0
        over, state = bool(model.terminated[at]), int(model.successors[at])
        path.append(state)
    return Run(agent.episodes.returns, tuple(path), soft_value(model, torch.from_numpy(agent.q), EPSILON))


def main() -> None:
    given = arguments(__doc__)
    seeds, episodes = (3, 200) if given.quick else (30, 500)
    runs = {name: [learn(name, seed, episodes) for seed in range(seeds)] for name in AGENTS}
    model = cliff()
    bounds = {
        "the best ε-soft policy": float(model.start @ soft_optimum(model, EPSILON)),
        "ε-greedy on the shortest path": shortest_path_value(model, EPSILON),
    }
    header = [
        "agent", "α", f"online return of the last {LAST} episodes ± standard error", "exact value of its ε-greedy policy, median",
        "greedy steps, median", "greedy paths at distance 1, 2, 3 of the cliff",
    ]  # fmt: skip
    print(table(header, [_row(name, found) for name, found in runs.items()]))
    print("\n" + table(["exact, from the model", "value of the start"], [[k, f"{v:.2f}"] for k, v in bounds.items()]))
    save(given.output, "cliff.svg", _plot(runs, bounds, episodes))


def _row(name: str, runs: Sequence[Run]) -> list[str]:
    online = [run.online for run in runs]
    error = statistics.stdev(online) / len(online) ** 0.5
    places = Counter(run.distance for run in runs)
    return [
        name,
        f"{AGENTS[name][1]:g}",
        f"{statistics.fmean(online):.2f} ± {error:.2f}",
        f"{statistics.median(run.soft_value for run in runs):.2f}",
        f"{statistics.median(len(run.path) - 1 for run in runs):g}",
        ", ".join(str(places[distance]) for distance in (1, 2, 3)),
    ]


def _plot(runs: dict[str, list[Run]], bounds: dict[str, float], episodes: int) -> str:
    """Return against episodes, the mean over seeds of running means of 20; and the commonest path of each agent."""
    curves = []
    for name, found in runs.items():
        mean = [statistics.fmean(run.returns[i] for run in found) for i in range(episodes)]
        smooth = [(i + 1, statistics.fmean(mean[max(0, i - 19) : i + 1])) for i in range(19, episodes)]
        curves.append(Curve(name, smooth))
    for (name, value), colour in zip(bounds.items(), ("#333", "#999"), strict=True):
        curves.append(Curve(f"{name}, {value:.1f}", [(0, value), (episodes, value)], dashed=True, colour=colour))
    ticks = tuple(episodes * i / 5 for i in range(6))
    panel = Panel("Return while exploring", "episode", curves, ticks, (-100, -80, -60, -40, -20, 0), legend=(0.3, 0.62))
    paths = {name: Counter(run.path for run in found).most_common(1)[0][0] for name, found in runs.items()}
    return picture([panel], _grid(paths, WIDE + 20, 60), wide=2 * WIDE)


def _grid(paths: dict[str, tuple[int, ...]], left: float, top: float, cell: float = 31) -> str:
    """The cliff and a line for each path, a little apart."""
    parts = [f'<text x="{left}" y="20" font-weight="bold">The greedy path that most seeds end with</text>']
    for state in range(ROWS * COLUMNS):
        row, column = divmod(state, COLUMNS)
        fill = "#e8d5c4" if row == 3 and 0 < column < COLUMNS - 1 else "#fafafa"
        x, y = left + column * cell, top + row * cell
        parts.append(f'<rect x="{x}" y="{y}" width="{cell}" height="{cell}" fill="{fill}" stroke="#ccc"/>')
    for column, label in ((0, "start"), (COLUMNS - 1, "goal")):
        x = left + (column + 0.5) * cell
        parts.append(f'<text x="{x}" y="{top + ROWS * cell + 14}" text-anchor="middle" fill="#555">{label}</text>')
    middle = left + COLUMNS * cell / 2
    parts.append(f'<text x="{middle}" y="{top + 3.62 * cell}" text-anchor="middle" fill="#875">the cliff: -100</text>')
    for index, (name, path) in enumerate(paths.items()):
        shift = 5 * (index - 1)
        points = " ".join(
            f"{left + (s % COLUMNS + 0.5) * cell + shift:.1f},{top + (s // COLUMNS + 0.5) * cell + shift:.1f}"
            for s in path
        )
        style = f'stroke="{COLOURS[index]}" stroke-width="2.2" fill="none"'
        parts.append(f'<polyline points="{points}" {style}/>')
        y = HIGH - 80 + 16 * index
        parts.append(f'<line x1="{left}" y1="{y}" x2="{left + 20}" y2="{y}" {style}/>')
        parts.append(f'<text x="{left + 26}" y="{y + 4}" fill="#333">{name}: {len(path) - 1} steps</text>')
    return "\n".join(parts)


if __name__ == "__main__":
    main()
