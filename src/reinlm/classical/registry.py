"""Which algorithms there are, and what is to be said of each."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from reinlm.aliases.absent import CLASSICAL_NAMES
from reinlm.errors import InputError, find_name, unknown

if TYPE_CHECKING:
    from reinlm.classical.agent import Agent

_AgentT = TypeVar("_AgentT", bound="type[Agent]")


@dataclass(frozen=True)
class Card:
    """What `reinlm classical --list` tells of an algorithm.

    Example:
        Card("sarsa", "table", "discrete", "Q(S,A) ← Q(S,A) + α [R + γ Q(S',A') - Q(S,A)]", "Sutton & Barto (2018) §6.4", "…")
    """

    name: str
    family: str
    """"model", "table", "value network" or "policy network"."""
    actions: str
    """"discrete" or "discrete, continuous"."""
    equation: str
    source: str
    use: str


CARDS: dict[str, Card] = {}
CLASSES: dict[str, type[Agent]] = {}
MODULES = (
    "tabular.dynamic_programming",
    "tabular.monte_carlo",
    "tabular.off_policy_monte_carlo",
    "tabular.td",
    "tabular.sarsa",
    "tabular.expected_sarsa",
    "tabular.q_learning",
    "tabular.double_q_learning",
    "deep.dqn",
    "deep.reinforce",
    "deep.actor_critic",
    "deep.trpo",
    "deep.ppo",
    "deep.ppo_penalty",
)
"""In the order in which the ideas came; a file for each."""


def named(
    name: str, *, family: str, actions: str, equation: str, source: str, use: str
) -> Callable[[_AgentT], _AgentT]:
    """Give a class the name that `reinlm classical NAME` takes."""

    def register(kind: _AgentT) -> _AgentT:
        CARDS[name] = Card(name, family, actions, equation, source, use)
        CLASSES[name] = kind
        kind.name = name
        kind.__signature__ = _signature(kind)  # type: ignore[attr-defined]
        return kind

    return register


def _signature(kind: type[Agent]) -> inspect.Signature:
    """What `help` and completion show: the environment, and every setting with its default."""
    keyword, several = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL
    own = [one for one in inspect.signature(kind.__init__).parameters.values() if one.kind is keyword]
    common = [one for one in inspect.signature(_base(kind).__init__).parameters.values() if one.kind is keyword]
    settings = [
        inspect.Parameter(
            name, keyword, default=field.get_default(call_default_factory=True), annotation=field.annotation
        )
        for name, field in kind.Settings.model_fields.items()
    ]
    unique = {one.name: one for one in (*own, *common, *settings)}
    return inspect.Signature([inspect.Parameter("env", several), *unique.values()])


def _base(kind: type[Agent]) -> type[Agent]:
    """`Agent`, whose module imports this one."""
    return next(one for one in kind.__mro__ if one.__name__ == "Agent")


def catalogue() -> list[Card]:
    """Every algorithm, in the order in which the ideas came."""
    _load()
    order = [f"reinlm.classical.{module}" for module in MODULES]
    return sorted(CARDS.values(), key=lambda card: order.index(CLASSES[card.name].__module__))


def example(name: str) -> tuple[str, ...]:
    """Words after `reinlm classical NAME` that run: an environment that suits the algorithm, and how long it learns."""
    family = CARDS[classical_name(name)].family
    if family == "model":
        return ("--env", "FrozenLake-v1")
    if family == "table":
        return ("--env", "FrozenLake-v1", "--episodes", "1000")
    return ("--env", "CartPole-v1", "--steps", "20000")


def find(name: str) -> type[Agent]:
    """The class of a name. Raises InputError with the nearest one for a name that does not exist."""
    return CLASSES[classical_name(name)]


def classical_name(name: str) -> str:
    """The name of an algorithm as it is registered; case, hyphens and underscores make no difference: `Q-Learning`.

    Raises InputError with the nearest one for a name that does not exist.
    """
    _load()
    known = find_name(name, CLASSES)
    if known is None:
        there = find_name(name, CLASSICAL_NAMES)
        if there is not None:
            raise InputError(f"there is no algorithm {name!r}", hint=f"use {CLASSICAL_NAMES[there]}")
        raise unknown("classical algorithm", name, CLASSES)
    return known


def _load() -> None:
    for module in MODULES:
        importlib.import_module(f"reinlm.classical.{module}")
