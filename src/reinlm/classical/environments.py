"""Gymnasium environments for control: made, checked, flattened, and what to do where one cannot be made."""

from __future__ import annotations

import difflib
import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from reinlm.classical import worlds
from reinlm.errors import InputError, RunError

EnvLike = str | gym.Env[Any, Any] | Callable[[], gym.Env[Any, Any]]
"""A Gymnasium id, a function that makes an environment, or one environment."""

MOVED = {
    "lunarlandercontinuous-v2": "LunarLander-v3 with continuous=True",
    "frozenlake8x8-v0": "FrozenLake8x8-v1",
    "pong": "ALE/Pong-v5 (pip install ale-py)",
    "breakout": "ALE/Breakout-v5 (pip install ale-py)",
    "spaceinvaders": "ALE/SpaceInvaders-v5 (pip install ale-py)",
    "copy": None,
    "guessinggame": None,
    "hottercolder": None,
    "kellycoinflip": None,
    "nchain": None,
    "offswitchcartpole": None,
    "roulette": None,
}
"""What Gym once had under another name (lower case), and its successor; None: it was retired without one."""

LONGEST_EPISODE = 1_000
"""Evaluation cuts an episode off here where the environment has no limit of its own: a greedy policy may walk in circles."""

worlds.register()


def make(env: EnvLike, **arguments: Any) -> gym.Env[Any, Any]:
    """The environment, without Gymnasium's passive checker; observations that are neither numbers in a row nor an index
    are flattened by `flatten`, not here.

    Raises InputError for an id that does not exist, naming its successor or the nearest name, for one whose dependencies
    are missing, and for arguments that it does not take.
    """
    if isinstance(env, gym.Env):
        if arguments:
            raise InputError(f"{name_of(env)} is made already and takes no arguments {sorted(arguments)}")
        return env
    if callable(env):
        return env(**arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's advice on versions; errors below say what is to be done
            return gym.make(env, disable_env_checker=True, **arguments)
    except gym.error.DependencyNotInstalled as error:
        raise InputError(f"environment {env!r} needs more than Gymnasium: {error}") from None
    except (gym.error.UnregisteredEnv, gym.error.Error) as error:
        raise _no_such(env, error) from None
    except ImportError as error:
        raise InputError(f"environment {env!r} cannot be made: {error}") from None
    except TypeError as error:
        raise InputError(f"environment {env!r} was not made: {error}", hint="see its documentation") from None


def _no_such(env: str, error: Exception) -> InputError:
    known = list(gym.registry)
    family = re.sub(r"-v\d+$", "", env).lower()
    for key in (env.lower(), family, re.sub(r"(noframeskip|deterministic)$", "", family)):
        if key in MOVED:
            successor = MOVED[key]
            hint = f"its successor is {successor}" if successor else "it was retired without a successor"
            return InputError(f"environment {env!r} is no longer part of Gymnasium", hint=hint)
    versions = [name for name in known if re.sub(r"-v\d+$", "", name).lower() == family]
    if versions:
        newest = max(versions, key=lambda name: int(name.rpartition("-v")[2]))
        if env.lower() != newest.lower():
            return InputError(f"environment {env!r} was retired or never existed", hint=f"its successor is {newest!r}")
        return InputError(f"environment {env!r} cannot be made: {error}", hint=f"did you mean {newest!r}?")
    near = difflib.get_close_matches(env.lower(), [name.lower() for name in known], n=1, cutoff=0.6)
    found = next((name for name in known if near and name.lower() == near[0]), None)
    hint = f"did you mean {found!r}?" if found else "ids are those of Gymnasium, such as CartPole-v1"
    return InputError(f"unknown environment {env!r}", hint=hint)


def name_of(env: EnvLike) -> str:
    """Its id, or the name of its class or function."""
    if isinstance(env, str):
        return env
    if isinstance(env, gym.Env):
        return env.spec.id if env.spec else type(env.unwrapped).__name__
    return getattr(env, "__name__", type(env).__name__)


def check_finite(env: str, step: int, observation: Any, reward: float) -> None:
    """Raise RunError where the environment returned a reward or an observation that is not finite."""
    if not math.isfinite(reward):
        raise RunError(f"{env} gave reward {reward} at step {step}", hint="a reward must be a finite number")
    if isinstance(observation, np.ndarray) and not np.isfinite(observation).all():
        raise RunError(f"{env} gave an observation with NaN or infinity at step {step}: {observation}")


def flatten(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """The same environment with observations that are float32 numbers in a row: an index becomes one-hot.

    Raises InputError for observations without a fixed number of values.
    """
    space = env.observation_space
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return env
    if not space.is_np_flattenable or isinstance(space, spaces.Text):
        raise InputError(
            f"{name_of(env)}: observations {space} have no fixed number of values, so no network can read them",
            hint="wrap the environment so that its observations are a Box",
        )
    return gym.wrappers.FlattenObservation(env)


def refuse(algorithm: str, env: str, what: str, space: spaces.Space[Any], why: str, instead: str) -> InputError:
    """The error for an algorithm that cannot act in a space."""
    return InputError(f"{algorithm} cannot act in {env}: its {what} are {space}, and {why}", hint=instead)
