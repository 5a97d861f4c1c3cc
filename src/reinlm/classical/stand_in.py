"""A stand-in for an environment that no id makes again: its spaces, so that a stored agent acts without it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from reinlm.errors import InputError


class StandIn(gym.Env[Any, Any]):
    """Has the spaces and the name of an environment, and no dynamics: `step` raises InputError.

    Args:
        name: of the environment in whose place it stands.
        where: the folder of the agent, for the message.
    """

    def __init__(self, name: str, observations: spaces.Space[Any], actions: spaces.Space[Any], where: str) -> None:
        self.name, self.where = name, where
        self.observation_space, self.action_space = observations, actions

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(0)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        raise self.missing()

    def missing(self) -> InputError:
        """The error for what needs the environment itself."""
        return InputError(
            f"the agent in {self.where} was made with an environment ({self.name}), not with the id of one: without it, "
            "it predicts, and neither learns nor is evaluated",
            hint=f"load({self.where!r}, env=…)",
        )


def describe_space(space: spaces.Space[Any]) -> dict[str, Any] | None:
    """A space as values for JSON; None for a kind that `read_space` does not make.

    Example:
        >>> describe_space(spaces.Discrete(3))
        {'space': 'Discrete', 'n': 3, 'start': 0}
    """
    if isinstance(space, spaces.Box):
        bounds = {name: [str(value) for value in getattr(space, name).ravel()] for name in ("low", "high")}
        bounds = {name: found[:1] if len(set(found)) == 1 else found for name, found in bounds.items()}
        return {"space": "Box", **bounds, "shape": list(space.shape), "dtype": str(space.dtype)}
    if isinstance(space, spaces.Discrete):
        return {"space": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"space": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"space": "MultiBinary", "shape": list(space.shape)}
    if isinstance(space, spaces.Tuple | spaces.Dict):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        parts = [[str(name), describe_space(part)] for name, part in inner]
        if all(part is not None for _, part in parts):
            return {"space": type(space).__name__, "parts": parts}
    return None


def read_space(described: dict[str, Any]) -> spaces.Space[Any]:
    """The space that `describe_space` has described."""
    kind = described["space"]
    if kind == "Box":
        shape, dtype = tuple(described["shape"]), np.dtype(described["dtype"])
        low, high = (
            np.broadcast_to(np.array([dtype.type(value) for value in described[name]], dtype=dtype), (size,)).reshape(
                shape
            )
            for name, size in (("low", int(np.prod(shape))), ("high", int(np.prod(shape))))
        )
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(described["n"], start=described["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(described["nvec"], start=described["start"])
    if kind == "MultiBinary":
        shape = described["shape"]
        return spaces.MultiBinary(shape if len(shape) > 1 else shape[0])
    parts = [(name, read_space(part)) for name, part in described["parts"]]
    return spaces.Dict(dict(parts)) if kind == "Dict" else spaces.Tuple([part for _, part in parts])
