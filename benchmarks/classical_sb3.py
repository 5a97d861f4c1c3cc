"""PPO and DQN beside those of an installed Stable-Baselines3: steps per second, and learning curves, in one run.

    python -m venv sb3 && . sb3/bin/activate && pip install stable-baselines3 && pip install -e .
    OMP_NUM_THREADS=1 python benchmarks/classical_sb3.py                    # 5 seeds; --quick for a minute

CartPole-v1, one thread, the same hyperparameters: for PPO the defaults of Stable-Baselines3, with 1 environment and with 8; for
DQN an update every four steps at a rate of 5e-4, which learns steadily (at the zoo's settings for CartPole the area of one and
the same library differs by a fifth from seed to seed). The two take turns in one process: whenever Stable-Baselines3 begins
to collect again (after 2,048 steps of PPO, at least 256 of DQN, and their updates), its clock stands still until ours has as
many steps, so that other work on the machine slows both. Speed is that of learning as a whole, environment and updates,
without the first turn.
Before that both make the same updates of the same steps, and say how far their weights are then apart.
A learning curve is the mean return of the last 20 episodes, read at 200 evenly spaced steps; its area is their mean.
Exit status 1 where updates are not the same to rounding, PPO is not 2 times as fast, DQN not 1.5 times, or an area is more
than 10 % from theirs.

What is written differently and means the same:

- theirs has the squared error of values times 0.5; ours half of it times `value_coefficient`, here 1.0
- theirs adds γ V(final observation) to the reward of a truncated step; ours bootstraps from it: the same advantages
- theirs divides advantages by deviation + 1e-8; ours by the root of variance + 1e-8

What differs:

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
from types import SimpleNamespace
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
TURN = 256
"""Steps of a turn, or a batch where that is more."""
WINDOW, GRID = 20, 200
WITHIN = 0.1
"""How far areas may be apart."""
ROUNDING = 1e-4
"""How far weights may be apart after the same updates in float32, and the last gradient, of its largest entry."""

Curve = list[tuple[int, float]]
"""(step at which an episode ended, its return), in order of the steps."""

# ------------------------------------------------------------------------------------------------ the two sides

Pair = tuple[Any, BaseAlgorithm]


def ppo(seed: int, environments: int, minibatch: int = 64, limit: int = 500) -> Pair:
    """Both, with the defaults of theirs; `limit` is where episodes are cut off."""
    each = 2048 // environments
    agent = PPO(
        ENVIRONMENT,
        seed=seed,
        env_arguments={"max_episode_steps": limit},
        environments=environments,
        rollout_steps=each,
        minibatch_size=minibatch,
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
    theirs = _environments(environments, seed, limit)
    return agent, sb3.PPO("MlpPolicy", theirs, n_steps=each, batch_size=minibatch, seed=seed, device="cpu")


def dqn(seed: int, epsilon: float = 1.0, starts: int = 1_000, limit: int = 500) -> Pair:
    """Both with an update every four steps at a small rate, so that five seeds make a curve; `epsilon` is the first."""
    agent = DQN(
        ENVIRONMENT,
        seed=seed,
        env_arguments={"max_episode_steps": limit},
        double=False,
        hidden=(256, 256),
        learning_rate=5e-4,
        schedule="constant",
        max_grad_norm=10.0,
        batch_size=64,
        capacity=100_000,
        learning_starts=starts,
        n=1,
        discount=0.99,
        target_every=250,
        train_every=4,
        updates=1,
        epsilon_start=epsilon,
        epsilon_end=min(epsilon, 0.04),
        epsilon_share=0.3,
        eval_freq=None,
    )
    model = sb3.DQN(
        "MlpPolicy",
        _environments(1, seed, limit),
        learning_rate=5e-4,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=starts,
        gamma=0.99,
        target_update_interval=250,
        train_freq=4,
        gradient_steps=1,
        exploration_fraction=0.3,
        exploration_initial_eps=epsilon,
        exploration_final_eps=min(epsilon, 0.04),
        policy_kwargs={"net_arch": [256, 256]},
        seed=seed,
        device="cpu",
    )
    return agent, model


def _environments(count: int, seed: int, limit: int) -> Any:
    """As Stable-Baselines3 makes them of an id, but without Gymnasium's checker, which ours leaves out too."""
    arguments = {"disable_env_checker": True, "max_episode_steps": limit}
    return make_vec_env(ENVIRONMENT, count, seed=seed, env_kwargs=arguments)


@dataclass(frozen=True)
class Case:
    """An algorithm on both sides with a seed, for a number of steps; how much faster ours has to be; and how far apart the two
    are after the same updates."""

    name: str
    steps: int
    make: Callable[[int], Pair]
    faster: float
    same: Callable[[], tuple[float, float]]


def cases(quick: bool) -> list[Case]:
    """Budgets are whole batches, so that both sides take the same steps."""
    return [
        Case("PPO, 1 environment", 10_240 if quick else 61_440, lambda seed: ppo(seed, 1), 2.0, lambda: same_ppo(1)),
        Case("PPO, 8 environments", 10_240 if quick else 61_440, lambda seed: ppo(seed, 8), 2.0, lambda: same_ppo(8)),
        Case("DQN", 7_680 if quick else 40_960, dqn, 1.5, same_dqn),
    ]


# ------------------------------------------------------------------------------------------------ the same updates


def same_ppo(environments: int) -> tuple[float, float]:
    """2,048 steps from the same weights with the same actions, in episodes that are cut off at 15, and ten updates of all of
    them: how far the weights are then apart, and the last gradient, of its largest entry."""
    agent, model = ppo(0, environments, minibatch=2048, limit=15)
    extractor, policy = model.policy.mlp_extractor, model.policy
    layers = [*extractor.policy_net, policy.action_net, *extractor.value_net, policy.value_net]
    _copy(agent, layers)
    model.learn(2048)
    acted = iter(
        model.rollout_buffer.actions.reshape(environments, -1).T.astype(int)
    )  # one environment after the other
    agent.actor.player = lambda: lambda observations, noise: next(acted)
    agent.learn(2048)
    return _apart(agent, layers)


def same_dqn() -> tuple[float, float]:
    """512 greedy steps from the same weights, in episodes that are cut off at 9, and their 128 updates, which draw the
    same places of the two memories; as above."""
    agent, model = dqn(0, epsilon=0.0, starts=0, limit=9)
    layers = list(model.q_net.q_net)
    _copy(agent, layers)
    agent.frozen.copy_from(agent.flat.vector.detach())
    drawn: list[Any] = []
    get, sample = model.replay_buffer._get_samples, agent.memory.sample

    def noted(places: Any, env: Any = None) -> Any:
        drawn.append(places)
        return get(places, env=env)

    model.replay_buffer._get_samples = noted
    again = SimpleNamespace(integers=lambda high, size: drawn.pop(0))
    agent.memory.sample = lambda number, rng: sample(number, again)
    model.learn(512)
    agent.learn(512)
    return _apart(agent, layers)


def _parameters(layers: Sequence[Any]) -> list[torch.Tensor]:
    return [parameter for layer in layers for parameter in layer.parameters()]


def _copy(agent: Any, layers: Sequence[Any]) -> None:
    agent.flat.copy_from(torch.cat([x.detach().flatten() for x in _parameters(layers)]))


def _apart(agent: Any, layers: Sequence[Any]) -> tuple[float, float]:
    weights = torch.cat([x.detach().flatten() for x in _parameters(layers)])
    gradient = torch.cat([x.grad.flatten() for x in _parameters(layers) if x.grad is not None])
    ours = agent.flat.vector
    return float((ours.detach() - weights).abs().max()), float(
        (ours.grad - gradient).abs().max() / gradient.abs().max()
    )


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
        if self.num_timesteps >= self.agent.steps + TURN:
            self._catch_up()
        elif not self.num_timesteps:
            self.since = time.perf_counter()

    def _on_training_end(self) -> None:
        if self.num_timesteps > self.agent.steps:
            self._catch_up()

    def _catch_up(self) -> None:
        now = time.perf_counter()
        self.agent.advance(self.num_timesteps)
        self.seconds.append((time.perf_counter() - now, now - self.since))
        self.since = time.perf_counter()


def run(case: Case, seed: int) -> Result:
    agent, model = case.make(seed)
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
    parser.add_argument("--quick", action="store_true", help="one seed and few steps, to see that it runs")
    parser.add_argument("--json", type=Path, help="write every turn and curve there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(1 if arguments.quick else arguments.seeds)
    found, record, missed = [], [], []
    for case in cases(arguments.quick):
        if not case.name.lower().startswith((arguments.only or "").lower()):
            continue
        weights, gradient = case.same()
        print(
            f"{case.name}, after the same updates: weights {weights:.0e} apart, the gradient {gradient:.0e}", flush=True
        )
        if max(weights, gradient) > ROUNDING:
            missed.append(f"the updates of {case.name}")
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
    missed += [row["name"] for row in found if not (row["holds"] or arguments.quick)]
    if missed:
        raise SystemExit(f"not as it should be: {', '.join(missed)}")


if __name__ == "__main__":
    main()
