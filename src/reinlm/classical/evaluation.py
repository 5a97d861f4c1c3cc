"""How good a policy is: episodes in which nothing is learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from reinlm.classical.agent import Agent
from reinlm.classical.budget import whole
from reinlm.classical.environments import (
    LONGEST_EPISODE,
    EnvLike,
    another,
    arguments_of,
    check_finite,
    check_one,
    make,
    name_of,
)
from reinlm.classical.sb3_names import check_evaluate
from reinlm.classical.stand_in import StandIn
from reinlm.errors import InputError
from reinlm.importing import refuse_while_importing


@dataclass(frozen=True)
class Evaluated:
    """Undiscounted returns of whole episodes; it unpacks as `mean_return, std_return`.

    Example: two episodes of CartPole, one of them perfect:
        Evaluated(returns=(500.0, 320.0), lengths=(500, 320))
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    def __iter__(self) -> Iterator[float]:
        return iter((self.mean_return, self.std_return))

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        """Of the episodes, with n - 1; 0 for a single one."""
        return float(np.std(self.returns, ddof=1)) if len(self.returns) > 1 else 0.0


def evaluate(
    policy: Agent | Callable[[Any], Any],
    env: EnvLike | None = None,
    episodes: int | None = None,
    *,
    seed: int = 10_000,
    deterministic: bool = True,
    render: Callable[[Any], None] | None = None,
    **env_arguments: Any,
) -> Evaluated:
    """Run a policy for whole episodes.

    Args:
        policy: an agent, or a function from observation to action.
        env: by default the agent's own, made anew with its arguments, or a copy of the one that it was given.
        episodes: at least 1, 100 by default; `n_eval_episodes` is the same.
        seed: of the first episode; episode i has seed + i.
        deterministic: the agent's best action rather than one drawn from its policy.
        render: is given what the environment renders, after the reset and every step.
        env_arguments: what `gymnasium.make` is given besides the id.

    An environment without a limit of its own is cut off after 1,000 steps. Raises InputError for episodes below 1, for an
    environment that is not one of Gymnasium, and for arguments that it is not made with.
    """
    refuse_while_importing("reinlm.classical.evaluate")
    if "n_eval_episodes" in env_arguments:
        if episodes is not None:
            raise InputError("episodes and n_eval_episodes are the same; give one of them")
        episodes = env_arguments.pop("n_eval_episodes")
    episodes = 100 if episodes is None else whole("episodes", episodes)
    if episodes < 1:
        raise InputError(f"episodes must be at least 1, not {episodes}")
    if render is not None and not callable(render):
        raise InputError(
            f"render is a function of a frame, not {render!r}",
            hint="give one; at the command line: --render video, or text",
        )
    check_evaluate(env_arguments, arguments_of(policy.env_like if env is None and isinstance(policy, Agent) else env))
    if isinstance(policy, Agent) and (env is None or env is policy.env_like):
        env, env_arguments = policy.env_like, {**policy.env_arguments, **env_arguments}
        env = another(env) if isinstance(env, gym.Env) else env
    if env is None:
        raise InputError("a function needs the environment to be evaluated in: give env")
    if not isinstance(env, str) and not callable(env):
        check_one(env, "env")
    if isinstance(env, StandIn):
        raise env.missing()
    act = (lambda observation: policy.predict(observation, deterministic)) if isinstance(policy, Agent) else policy
    world = make(env, **env_arguments)
    results = [_episode(world, act, name_of(env), seed + index, render) for index in range(episodes)]
    if not isinstance(env, gym.Env):
        world.close()
    return Evaluated(tuple(total for total, _ in results), tuple(length for _, length in results))


def _episode(
    world: gym.Env[Any, Any], act: Callable[[Any], Any], name: str, seed: int, render: Callable[[Any], None] | None
) -> tuple[float, int]:
    observation, _ = world.reset(seed=seed)
    limited = world.spec is not None and world.spec.max_episode_steps is not None
    total, length, over = 0.0, 0, False
    while not over:
        if render is not None:
            render(world.render())
        observation, reward, terminated, truncated, _ = world.step(act(observation))
        length += 1
        check_finite(name, length, observation, float(reward))
        total += float(reward)
        over = bool(terminated or truncated) or (not limited and length >= LONGEST_EPISODE)
    if render is not None:
        render(world.render())
    return total, length
