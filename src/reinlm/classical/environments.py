"""Gymnasium environments for control: made, checked, flattened, and what to do where one cannot be made."""

from __future__ import annotations

import copy
import inspect
import math
import re
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator

from reinlm.classical import worlds
from reinlm.classical.missing_ids import no_such
from reinlm.errors import InputError, RunError
from reinlm.parts import load_imports

EnvLike = str | gym.Env[Any, Any] | Callable[..., gym.Env[Any, Any]]
"""A Gymnasium id, `file.py:CLASS` or `module:CLASS`, a class or function that makes an environment, or one environment."""

LONGEST_EPISODE = 1_000
"""Evaluation cuts an episode off here where the environment has no limit of its own: a greedy policy may walk in circles."""

worlds.register()


def make(env: EnvLike, **arguments: Any) -> gym.Env[Any, Any]:
    """The environment, without Gymnasium's passive checker; observations that are neither numbers in a row nor an index
    are flattened by `flatten`, not here.

    Raises InputError for an id that does not exist, naming its successor or the nearest name, for one whose dependencies
    are missing, and for arguments that it does not take.
    """
    made = _made(env, arguments)
    reset = made.unwrapped.reset
    try:
        inspect.signature(reset).bind(seed=0, options=None)
    except TypeError:
        raise InputError(
            f"{type(made.unwrapped).__name__}.reset must take seed and options (gymnasium.Env)",
            hint="def reset(self, *, seed=None, options=None)",
        ) from None
    return made


def _made(env: EnvLike, arguments: dict[str, Any]) -> gym.Env[Any, Any]:
    if isinstance(env, gym.Env):
        if arguments:
            raise InputError(f"{name_of(env)} is made already and takes no arguments {sorted(arguments)}")
        return env
    if not isinstance(env, str):
        return _called(env, name_of(env), arguments)
    if ":" in env and not re.search(r"-v\d+$", env):
        return _called(_placed(env), env, arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's advice on versions; errors below say what is to be done
            return gym.make(env, disable_env_checker=True, **arguments)
    except gym.error.DependencyNotInstalled as error:
        raise InputError(f"environment {env!r} needs more than Gymnasium: {error}") from None
    except (gym.error.UnregisteredEnv, gym.error.Error) as error:
        raise no_such(env, error) from None
    except ImportError as error:
        raise InputError(f"environment {env!r} cannot be made: {error}") from None
    except TypeError as error:
        reason = str(error).partition(" was raised from the environment creator")[0]
        known = ", ".join(arguments_of(env)) or "none"
        raise InputError(f"environment {env!r} was not made: {reason}", hint=f"its arguments are {known}") from None


def _placed(place: str) -> Any:
    """The class or function at `file.py:CLASS` or `module:CLASS`; Gymnasium reads `module:ID-v0` itself."""
    file, _, name = place.rpartition(":")
    if file.endswith(".py") and not Path(file).expanduser().is_file():
        raise InputError(f"environment {place!r}: no such file: {file}", hint="write file.py:CLASS or module:CLASS")
    (module,) = load_imports([file])
    if not hasattr(module, name):
        made = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, gym.Env)]
        found = f"it has {', '.join(made)}" if made else "write file.py:CLASS or module:CLASS"
        raise InputError(f"environment {place!r}: {file} has no {name!r}", hint=found)
    return getattr(module, name)


def _called(maker: Any, name: str, arguments: dict[str, Any]) -> gym.Env[Any, Any]:
    """The environment that a class or function makes. Raises InputError where it makes none."""
    if not callable(maker):
        raise InputError(
            f"environment {name!r} is an object of type {type(maker).__name__}",
            hint="name a class of environments, or a function that makes one",
        )
    try:
        inspect.signature(maker).bind(**arguments)
    except TypeError as error:
        raise InputError(
            f"environment {name!r} was not made: {error}",
            hint="its arguments are env_arguments={…}, or env.KEY=VALUE at the command line",
        ) from None
    except ValueError:  # a builtin without a signature
        pass
    made = maker(**arguments)
    check_one(made, f"{name}()")
    environment: gym.Env[Any, Any] = made
    return environment


def maker_of(env: EnvLike | None) -> Any:
    """The class or function that makes an environment; of one that is made already its class."""
    if isinstance(env, gym.Env):
        return type(env.unwrapped)
    if isinstance(env, str):
        spec = gym.registry.get(env)
        maker: Any = _placed(env) if spec is None else spec.entry_point
        return load_env_creator(maker) if isinstance(maker, str) else maker
    return env


def arguments_of(env: EnvLike | None) -> Collection[str]:
    """Names of the arguments that an environment is made with; none for one that is made already or cannot be found."""
    if isinstance(env, gym.Env):
        return ()
    try:
        return tuple(inspect.signature(maker_of(env)).parameters)
    except (InputError, ImportError, AttributeError, TypeError, ValueError):
        return ()


def check_one(env: Any, name: str) -> None:
    """Raise InputError for an object that is not one Gymnasium environment."""
    if isinstance(env, gym.Env):
        return
    if isinstance(env, gym.vector.VectorEnv) or hasattr(env, "step_async"):
        raise InputError(
            f"{name} holds several environments already, and an agent makes its own side by side",
            hint='give an id or a function that makes one, and how many: PPO("CartPole-v1", environments=8)',
        )
    if hasattr(env, "reset") and hasattr(env, "step"):
        raise InputError(
            f"{name} is no environment of Gymnasium: its class {type(env).__module__}.{type(env).__name__} does not derive "
            "from gymnasium.Env",
            hint="derive from gymnasium.Env; for one of gym, gymnasium.make('GymV21Environment-v0', env=env) of shimmy wraps it",
        )
    raise InputError(
        f"{name} is {'None' if env is None else f'an object of type {type(env).__name__}'}, not an environment",
        hint='give a Gymnasium id such as "CartPole-v1", an environment, or a function that makes one',
    )


def recipe_of(env: EnvLike) -> tuple[str, dict[str, Any]] | None:
    """The id and the arguments by which `make` makes such an environment again, as plain values; None where no id does.

    An environment that `gymnasium.make` made, without further wrappers, has them; what was changed in it since is not among
    them, and neither is the way in which it renders.
    """
    if isinstance(env, str):
        return env, {}
    spec = env.spec if isinstance(env, gym.Env) else None
    if spec is None or spec.additional_wrappers or spec.id not in gym.registry:
        return None
    arguments = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    if spec.max_episode_steps != gym.registry[spec.id].max_episode_steps:
        arguments["max_episode_steps"] = spec.max_episode_steps
    plain = all(isinstance(value, bool | int | float | str | None) for value in arguments.values())
    return (spec.id, arguments) if plain else None


def another(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """A copy of an environment, to be evaluated in while the first is trained in.

    Raises InputError for one that can neither be copied nor made again by its id.
    """
    try:
        return copy.deepcopy(env)
    except Exception:  # noqa: BLE001  what an environment holds decides what copying it raises
        known = recipe_of(env)
    if known is None:
        raise InputError(
            f"{name_of(env)} cannot be copied, and the agent is in the middle of its training in it",
            hint="give another one: evaluate(agent, env=…)",
        )
    return make(known[0], **known[1])


def name_of(env: EnvLike) -> str:
    """Its id, or the name of its class or function."""
    if isinstance(env, str):
        return env
    if isinstance(env, gym.Env):
        return env.spec.id if env.spec else getattr(env.unwrapped, "name", None) or type(env.unwrapped).__name__
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
    if is_image(space):
        raise InputError(
            f"{name_of(env)}: observations {space} are images, and there is no convolutional network here",
            hint="take an environment whose observations are numbers in a row, or wrap it in gymnasium.wrappers."
            "FlattenObservation after RescaleObservation for a network of linear layers",
        )
    if not space.is_np_flattenable or isinstance(space, spaces.Text):
        raise InputError(
            f"{name_of(env)}: observations {space} have no fixed number of values, so no network can read them",
            hint="wrap the environment so that its observations are a Box",
        )
    return gym.wrappers.FlattenObservation(env)


def is_image(space: spaces.Space[Any]) -> bool:
    """Whether observations are pictures: bytes in three dimensions, one of them of 1, 3 or 4 channels."""
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
        and bool({space.shape[0], space.shape[-1]} & {1, 3, 4})
    )


def refuse(algorithm: str, env: str, what: str, space: spaces.Space[Any], why: str, instead: str) -> InputError:
    """The error for an algorithm that cannot act in a space."""
    return InputError(f"{algorithm} cannot act in {env}: its {what} are {space}, and {why}", hint=instead)
