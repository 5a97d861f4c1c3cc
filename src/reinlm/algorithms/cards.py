"""How a named algorithm is registered: under its function's name, with a card for the documentation."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import TypedDict, TypeVar

from reinlm.composition import Algorithm
from reinlm.composition.preference import PreferenceAlgorithm

Made = TypeVar("Made", Algorithm, PreferenceAlgorithm)


@dataclass(frozen=True)
class Card:
    """Documentation of a named algorithm that its choices do not contain.

    Example:
        Card(name="gspo", parent="grpo", source="GSPO, arXiv 2507.18071", published="2025-07-24", equation="J = …",
             formula=r"J(\\theta) = …", summary="GRPO with one ratio a sequence.", use="…", fails="…")
    """

    name: str
    parent: str | None
    """The algorithm that the documentation compares it with."""
    source: str
    published: str
    """ISO date of the paper, by which lists are sorted."""
    equation: str
    """The objective that is maximised, or the loss that is minimised, in plain characters."""
    formula: str
    """The same in LaTeX."""
    summary: str
    """One sentence: the first line of the docstring."""
    use: str
    """When to use it."""
    fails: str
    """How it fails, and which metrics show it."""


class Described(TypedDict):
    """What is written of an algorithm where it is registered: the fields of its `Card` but name and summary."""

    parent: str | None
    source: str
    published: str
    equation: str
    formula: str
    use: str
    fails: str


def registering(
    algorithms: MutableMapping[str, Callable[[], Made]], cards: MutableMapping[str, Card], described: Described
) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """A decorator that registers an algorithm under its function's name, and gives it that name and source.

    The first line of the docstring is the summary.
    """

    def register(compose: Callable[[], Made]) -> Callable[[], Made]:
        name = compose.__name__
        summary = (compose.__doc__ or "").strip().splitlines()[0]

        @wraps(compose)
        def build() -> Made:
            return replace(compose(), name=name, source=described["source"])

        algorithms[name] = build
        cards[name] = Card(name=name, summary=summary, **described)
        return build

    return register
