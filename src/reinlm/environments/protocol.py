"""The environment protocol: Gymnasium's `reset` and `step`, over text.

    class Guess:
        name = "guess"

        def reset(self, task):
            self.number = task.columns["number"]
            return None                                   # the model reads the task's own content

        def step(self, action):
            if action.text.strip() == str(self.number):
                return StepResult(reward=1.0, terminated=True)
            return StepResult("No. Guess again.\\n", reward=0.0)

Either method may be `async`; a synchronous one runs in a thread of its own, so that episodes do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from reinlm.records import Array, Message, Task
from reinlm.runs.declarations import NAME_CHARACTERS, is_metric_name

Observation = str | Sequence[Message] | Array | None
"""The next input of the model: text, chat messages, token ids (an int array [n]), or None.

From `reset`, None means the content of the task. In an episode of chat messages a text becomes a user message. Token
ids are appended to the context unchanged; they are allowed in episodes over text or tokens, not in chats.
"""

Reward = float | Mapping[str, float] | None
"""One reward, several by name, or None. None differs from a reward of 0."""

_LARGEST_ID = int(np.iinfo(np.int32).max)
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Action:
    """One finished turn of the model.

    Example:
        Action(text="7", token_ids=np.array([9, 1], np.int32), message={"role": "assistant", "content": "7"})
    """

    text: str
    """The text of the turn without special tokens and stop token; for a message its content."""
    token_ids: Array
    """[n] int32: the sampled tokens, the stop token included."""
    message: Message | None = None
    """In a chat episode: the assistant message, with tool calls and thoughts as the renderer parses them."""


class StepResult(NamedTuple):
    """The result of `step`; a plain tuple of the five fields in this order is also accepted.

    Example:
        StepResult("The tool says 42.", reward={"called_tool": 0.1})
    """

    observation: Observation = None
    """None is allowed only if the episode has ended."""
    reward: Reward = None
    """Assigned to the last token of the turn, under the name of the environment or the names of the mapping, which no reward
    function may have."""
    terminated: bool = False
    """The episode ended by the rules of the task."""
    truncated: bool = False
    """A limit of the environment ended the episode."""
    info: Mapping[str, Any] = _NOTHING
    """`reason`: a word that replaces "environment" as `Rollout.reason`. Other keys are ignored."""


class Environment(Protocol):
    """The environment of one episode; each episode has its own instance. Its rewards are named after its attribute `name`,
    or else its class.

    An optional `close()` is called at the end of the episode, however it ended.
    """

    def reset(self, task: Task) -> Observation | Awaitable[Observation]:
        """Start the task and return the first observation."""

    def step(self, action: Action) -> StepResult | tuple[Any, ...] | Awaitable[StepResult | tuple[Any, ...]]:
        """Process a turn of the model."""


MakeEnvironment = Callable[[], Environment]
"""Creates the environment of one episode; a class without required arguments is one."""


def check_environment(environment: Any) -> None:
    """Raise TypeError where an environment, or the class of one, lacks a method, or its name cannot name rewards."""
    for method in ("reset", "step"):
        if not callable(getattr(environment, method, None)):
            name = environment.__name__ if isinstance(environment, type) else type(environment).__name__
            raise TypeError(f"{name} has no method {method!r}; an environment has reset(task) and step(action)")
    if not isinstance(environment, type):
        _check_name(name_of(environment))


def name_of(environment: Environment) -> str:
    """The name of its rewards."""
    return str(getattr(environment, "name", None) or type(environment).__name__)


def checked_observation(value: Any) -> Observation:
    """The observation, lists as arrays or tuples.

    Raises TypeError for anything that is none, and ValueError for token ids that are negative or no int32.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, np.ndarray):
        if value.ndim != 1 or not np.issubdtype(value.dtype, np.integer):
            raise TypeError(f"an observation of shape {value.shape} and type {value.dtype}; token ids are integers [n]")
        outside = value[(value < 0) | (value > _LARGEST_ID)]
        if len(outside):
            raise ValueError(f"an observation with the token id {outside[0]}; ids are from 0 up to {_LARGEST_ID}")
        return value.astype(np.int32)
    if isinstance(value, Sequence) and value and all(_is_message(one) for one in value):
        return tuple(value)
    raise TypeError(
        f"an observation of type {type(value).__name__}; allowed are text, messages with a role, an integer array, None"
    )


def checked_step(value: Any) -> StepResult:
    """The result of a step with its parts checked. Raises TypeError or ValueError for one that cannot be used."""
    if not isinstance(value, tuple) or len(value) != 5:
        given = f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
        raise TypeError(f"{given}, not (observation, reward, terminated, truncated, info)")
    observation, reward, terminated, truncated, info = value
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(f"{name} of type {type(flag).__name__}, not bool")
    if not isinstance(info, Mapping):
        raise TypeError(f"info of type {type(info).__name__}, not a mapping")
    observation = checked_observation(observation)
    if observation is None and not terminated and not truncated:
        raise ValueError("no observation, though the episode goes on")
    return StepResult(observation, _checked_reward(reward), bool(terminated), bool(truncated), info)


def _checked_reward(reward: Any) -> Reward:
    if reward is None:
        return None
    if isinstance(reward, Mapping):
        for name in reward:
            _check_name(name)
        return {name: _reward_value(value) for name, value in reward.items()}
    return _reward_value(reward)


def _check_name(name: Any) -> None:
    if not is_metric_name(name):
        raise TypeError(f"a reward named {name!r}; a reward's name is a text of {NAME_CHARACTERS}")


def _reward_value(value: Any) -> float:
    if not isinstance(value, int | float | np.number | np.bool_):
        raise TypeError(f"a reward of type {type(value).__name__}; allowed are a number, names with numbers, None")
    if not np.isfinite(value):
        raise ValueError(f"a reward of {value}, which is not finite")
    return float(value)


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str)
