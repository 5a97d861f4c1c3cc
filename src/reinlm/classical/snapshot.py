"""The state of an environment as plain values, so that a run killed in the middle of an episode goes on in the middle of it."""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

Snapshot = list[dict[str, Any]]
"""For each wrapper, from the outside in: its attributes that moved."""

_CONSTANT = (gym.Space, EnvSpec, gym.Env, type, FunctionType, MethodType)
"""What an environment may hold besides values: nothing of it moves from step to step."""


def capture(env: gym.Env[Any, Any], pristine: Snapshot | None = None) -> Snapshot | None:
    """The attributes of an environment and its wrappers; with `pristine`, an earlier capture, those alone that moved since.

    None where one of them is neither a value nor known to be constant, such as the world of a physics engine.
    """
    layers: Snapshot = []
    for index, layer in enumerate(_layers(env)):
        values: dict[str, Any] = {}
        for name, value in vars(layer).items():
            if isinstance(value, _CONSTANT):
                continue
            try:
                plain = _copied(value)
            except TypeError:
                return None
            if pristine is None or not _same(plain, pristine[index].get(name, _same)):
                values[name] = plain
        layers.append(values)
    return layers


def restore(env: gym.Env[Any, Any], snapshot: Snapshot | None, name: str = "the environment") -> bool:
    """Take a capture back; True. Where there is none the environment begins a new episode, with a warning, and so it does,
    without one, where the capture is of an environment that is made differently; False then."""
    if snapshot is None:
        warnings.warn(
            f"the state of {name} cannot be saved, so the episode that was interrupted begins again", stacklevel=2
        )
        return False
    layers = _layers(env)
    if len(layers) != len(snapshot) or any(
        values.keys() - vars(one).keys() for one, values in zip(layers, snapshot, strict=True)
    ):
        return False
    for layer, values in zip(layers, snapshot, strict=True):
        for key, value in values.items():
            setattr(layer, key, _real(value))
    return True


def _layers(env: gym.Env[Any, Any]) -> list[gym.Env[Any, Any]]:
    layers = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _copied(value: Any) -> Any:
    """A copy that `reinlm.runs.state` can write. Raises TypeError for what is no value."""
    if isinstance(value, np.str_):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str | bytes | np.generic):
        return value
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.copy()
    if isinstance(value, np.random.Generator):
        return {"random generator": copy.deepcopy(value.bit_generator.state)}
    if isinstance(value, deque):
        return {"deque": [[_copied(item) for item in value], value.maxlen]}
    if isinstance(value, list | tuple):
        items = [_copied(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    raise TypeError(type(value).__name__)


def _real(value: Any) -> Any:
    if isinstance(value, Mapping) and value.keys() == {"random generator"}:
        state = value["random generator"]
        generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
        generator.bit_generator.state = state
        return generator
    if isinstance(value, Mapping) and value.keys() == {"deque"}:
        return deque(value["deque"][0], maxlen=value["deque"][1])
    return copy.deepcopy(value)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return bool(a == b)
