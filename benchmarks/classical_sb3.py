"""PPO and DQN beside those of an installed Stable-Baselines3: steps per second, and learning curves, in one run.

    python -m venv sb3 && . sb3/bin/activate && pip install stable-baselines3 && pip install -e .
    OMP_NUM_THREADS=1 python benchmarks/classical_sb3.py                    # 5 seeds; --quick for a minute

CartPole-v1, one thread, the same hyperparameters: for PPO the defaults of Stable-Baselines3, with 1 environment and with 8; for
DQN those that rl-baselines3-zoo has for CartPole. The two take turns in one process: whenever Stable-Baselines3 begins to
collect again (after 2,048 steps of PPO, 256 of DQN, and their updates), its clock stands still until ours has as many steps, so
that other work on the machine slows both. Speed is that of learning as a whole, environment and updates, without the first turn.
A learning curve is the mean return of the last 20 episodes, read at 200 evenly spaced steps; its area is their mean.
Exit status 1 where PPO is not 2 times as fast, DQN not 1.5 times, or an area is more than 10 % from theirs.

What is written differently and means the same:

- theirs has the squared error of values times 0.5; ours half of it times `value_coefficient`, here 1.0
- theirs adds γ V(final observation) to the reward of a truncated step; ours bootstraps from it: the same advantages
- theirs divides advantages by deviation + 1e-8; ours by the root of variance + 1e-8

What differs:

- the weights DQN begins with: theirs are PyTorch's own, uniform in ±1/√inputs, biases too; ours orthogonal, biases 0
  (`--uniform` gives ours theirs)
- before `learning_starts` theirs acts at random; ours with ε, which begins at 1 and is on its way down
- seeds mean the same number, not the same random numbers
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from reinlm.classical.agent import Agent
from reinlm.classical.deep.dqn import DQN
from reinlm.classical.deep.ppo import PPO

try:
    import stable_baselines3 as sb3
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
except ImportError as error:
    raise SystemExit(
        f"Stable-Baselines3 cannot be imported here ({error}); {__file__} says how to set it up"
    ) from error

ENVIRONMENT = "CartPole-v1"
WINDOW, GRID = 20, 200
WITHIN = 0.1
"""How far areas may be apart."""

Curve = list[tuple[int, float]]
"""(step at which an episode ended, its return), in order of the steps."""

# ------------------------------------------------------------------------------------------------ the two sides


@dataclass(frozen=True)
class Case:
    """An algorithm on both sides, and how much faster ours has to be."""

    name: str
    steps: int
    ours: Callable[[int], Agent]
    theirs: Callable[[int], BaseAlgorithm]
    faster: float


def _ppo(environments: int, steps: int) -> Case:
    each = 2048 // environments

    def ours(seed: int) -> Agent:
        return PPO(
            ENVIRONMENT,
            seed=seed,
            environments=environments,
            rollout_steps=each,
            minibatch_size=64,
            epochs=10,
            hidden=(64, 64),
            learning_rate=3e-4,
            schedule="constant",
            discount=0.99,
            smoothing=0.95,
            clip=0.2,
            entropy_coefficient=0.0,
            value_coefficient=1.0,
            max_grad_norm=0.5,
            normalize_advantages=True,
            normalize_observations=False,
            normalize_rewards=False,
        )

    def theirs(seed: int) -> BaseAlgorithm:
        return sb3.PPO("MlpPolicy", _environments(environments, seed), n_steps=each, seed=seed, device="cpu")

    return Case(f"PPO, {environments} environment{'s' * (environments > 1)}", steps, ours, theirs, faster=2.0)


def _dqn(steps: int, uniform: bool) -> Case:
    def ours(seed: int) -> Agent:
        agent = DQN(
            ENVIRONMENT,
            seed=seed,
            double=False,
            hidden=(256, 256),
            learning_rate=2.3e-3,
            schedule="constant",
            max_grad_norm=10.0,
            batch_size=64,
            capacity=100_000,
            learning_starts=1_000,
            discount=0.99,
            target_every=10,
            train_every=256,
            updates=128,
            epsilon_end=0.04,
            epsilon_share=0.16,
        )
        if uniform:
            torch.manual_seed(seed)
            for layer in agent.online.layers:
                layer.reset_parameters()
            agent.frozen.copy_from(agent.flat.vector.detach())
        return agent

    def theirs(seed: int) -> BaseAlgorithm:
        return sb3.DQN(
            "MlpPolicy",
            _environments(1, seed),
            learning_rate=2.3e-3,
            batch_size=64,
            buffer_size=100_000,
            learning_starts=1_000,
            gamma=0.99,
            target_update_interval=10,
            train_freq=256,
            gradient_steps=128,
            exploration_fraction=0.16,
            exploration_final_eps=0.04,
            policy_kwargs={"net_arch": [256, 256]},
            seed=seed,
            device="cpu",
        )

    return Case("DQN", steps, ours, theirs, faster=1.5)


def _environments(count: int, seed: int) -> Any:
    """As Stable-Baselines3 makes them of an id, but without Gymnasium's checker, which ours leaves out too."""
    return make_vec_env(ENVIRONMENT, count, seed=seed, env_kwargs={"disable_env_checker": True})


def cases(quick: bool, uniform: bool) -> list[Case]:
    """Budgets are whole batches, so that both sides take the same steps."""
    if quick:
        return [_ppo(1, 10_240), _ppo(8, 10_240), _dqn(7_680, uniform)]
    return [_ppo(1, 61_440), _ppo(8, 61_440), _dqn(50_176, uniform)]


# ------------------------------------------------------------------------------------------------ taking turns


@dataclass(frozen=True)
class Result:
    """One seed: the seconds of both in each turn, (ours, theirs), and their curves."""

    seconds: list[tuple[float, float]]
    ours: Curve
    theirs: Curve


class Turns(BaseCallback):
    """Lets our agent catch up whenever Stable-Baselines3 begins to collect, and keeps both clocks."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent
        self.seconds: list[tuple[float, float]] = []
        self.since = time.perf_counter()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        now = time.perf_counter()
        if self.num_timesteps > self.agent.steps:
            self.agent.advance(self.num_timesteps)
            self.seconds.append((time.perf_counter() - now, now - self.since))
        self.since = time.perf_counter()

    def _on_training_end(self) -> None:
        self._on_rollout_start()


def run(case: Case, seed: int) -> Result:
    agent, model = case.ours(seed), case.theirs(seed)
    agent.begin(case.steps)
    turns = Turns(agent)
    model.learn(case.steps, callback=turns)
    assert agent.steps == model.num_timesteps == case.steps, (agent.steps, model.num_timesteps, case.steps)
    ours = list(zip(agent.episodes.ends, agent.episodes.returns, strict=True))
    return Result(turns.seconds, ours, _monitored(model))


def _monitored(model: BaseAlgorithm) -> Curve:
    """The episodes of all environments, from their monitors; a step of all is as many steps as there are environments."""
    environments = model.get_env()
    assert environments is not None
    curve: Curve = []
    lengths, returns = (environments.env_method(f"get_episode_{what}") for what in ("lengths", "rewards"))
    for of_one, earned in zip(lengths, returns, strict=True):
        end = 0
        for length, total in zip(of_one, earned, strict=True):
            end += length * environments.num_envs
            curve.append((end, float(total)))
    return sorted(curve)


# ------------------------------------------------------------------------------------------------ what is printed


def area(curve: Curve, steps: int) -> float:
    """The mean over the grid of the mean return of the last episodes, from the first that ended."""
    ends = [end for end, _ in curve]
    values = []
    for point in range(1, GRID + 1):
        ended = bisect_right(ends, steps * point / GRID)
        if ended:
            values.append(statistics.fmean(total for _, total in curve[max(ended - WINDOW, 0) : ended]))
    return statistics.fmean(values)


def compare(case: Case, results: Sequence[Result]) -> dict[str, Any]:
    turns = [turn for result in results for turn in result.seconds[1:]]
    taken = len(turns) * case.steps / len(results[0].seconds)
    ours, theirs = (sum(turn[side] for turn in turns) for side in (0, 1))
    areas = [[area(curve, case.steps) for curve in (result.ours, result.theirs)] for result in results]
    mine, other = (statistics.fmean(pair[side] for pair in areas) for side in (0, 1))
    return {
        "name": case.name,
        "ours": taken / ours,
        "theirs": taken / theirs,
        "ratio": theirs / ours,
        "median": statistics.median(b / a for a, b in turns),
        "areas": areas,
        "difference": mine / other - 1.0,
        "error": _error([pair[0] for pair in areas], [pair[1] for pair in areas]) / other,
        "holds": theirs / ours >= case.faster and abs(mine / other - 1.0) <= WITHIN,
    }


def _error(*sides: Sequence[float]) -> float:
    """The standard error of the difference of two means."""
    return sum(statistics.variance(side) / len(side) for side in sides if len(side) > 1) ** 0.5


def report(found: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| algorithm | steps/s, reinlm | steps/s, SB3 | ratio | median of turns | areas, reinlm | mean | areas, SB3 | mean "
        "| difference |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        sides = [[pair[side] for pair in row["areas"]] for side in (0, 1)]
        columns = [f"{', '.join(format(x, '.0f') for x in side)} | {statistics.fmean(side):.1f}" for side in sides]
        lines.append(
            f"| {row['name']} | {row['ours']:,.0f} | {row['theirs']:,.0f} | {row['ratio']:.2f} | {row['median']:.2f} "
            f"| {columns[0]} | {columns[1]} | {row['difference']:+.1%} (± {row['error']:.1%}) |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5, help="as many, from 0")
    parser.add_argument("--only", help="cases whose name begins so: ppo, dqn")
    parser.add_argument("--uniform", action="store_true", help="our DQN begins with weights as PyTorch makes them")
    parser.add_argument("--quick", action="store_true", help="one seed and few steps, to see that it runs")
    parser.add_argument("--json", type=Path, help="write every turn and curve there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(1 if arguments.quick else arguments.seeds)
    found, record = [], []
    for case in cases(arguments.quick, arguments.uniform):
        if not case.name.lower().startswith((arguments.only or "").lower()):
            continue
        results = []
        for seed in seeds:
            results.append(run(case, seed))
            one = compare(case, results[-1:])
            print(f"{case.name}, seed {seed}: ratio {one['ratio']:.2f}, areas {one['areas']}", flush=True)
        found.append(compare(case, results))
        record.append({**found[-1], "runs": [vars(result) for result in results]})
    print("\n" + report(found))
    if arguments.json:
        arguments.json.write_text(json.dumps(record))
    missed = [row["name"] for row in found if not row["holds"]]
    if missed and not arguments.quick:
        raise SystemExit(f"not as it should be: {', '.join(missed)}")


if __name__ == "__main__":
    main()
