"""The named algorithms: what registers one, and what is told about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps

from reinlm.algorithms.algorithm import Algorithm

ALGORITHMS: dict[str, Callable[[], Algorithm]] = {}
CARDS: dict[str, Card] = {}


@dataclass(frozen=True)
class Card:
    """What the documentation says of a named algorithm, beside what its choices say for themselves.

    Example:
        Card(name="gspo", parent="grpo", source="GSPO, arXiv 2507.18071", published="2025-07-24", equation="J = …",
             formula=r"J(\\theta) = …", summary="GRPO with one ratio a sequence.", use="…", fails="…")
    """

    name: str
    parent: str | None
    """The rung below: what it is told as a difference from."""
    source: str
    published: str
    """Year and month, which order the ladder."""
    equation: str
    """What is maximised, in plain characters."""
    formula: str
    """The same in LaTeX."""
    summary: str
    """One sentence."""
    use: str
    """When to take it."""
    fails: str
    """How it fails, and what to look at."""


def named(
    *, parent: str | None, source: str, published: str, equation: str, formula: str, use: str, fails: str
) -> Callable[[Callable[[], Algorithm]], Callable[[], Algorithm]]:
    """Register a composition under its function's name, and give the algorithm that name and source.

    The first line of the docstring is the summary.
    """

    def register(compose: Callable[[], Algorithm]) -> Callable[[], Algorithm]:
        name = compose.__name__
        summary = (compose.__doc__ or "").strip().splitlines()[0]

        @wraps(compose)
        def build() -> Algorithm:
            return replace(compose(), name=name, source=source)

        ALGORITHMS[name] = build
        CARDS[name] = Card(name, parent, source, published, equation, formula, summary, use, fails)
        return build

    return register


def ladder() -> list[Card]:
    """All named algorithms by the date of their paper."""
    return sorted(CARDS.values(), key=lambda card: card.published)
