"""The registry of choices by name.

A new choice is one decorated class or function; recipes, `algorithm_spec` and the documentation look it up here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from reinlm.objectives.earlier import EARLIER, warn_renamed

CHOICES: dict[str, dict[str, Any]] = {}
"""kind -> name in a recipe -> the class whose instances are choices, or the function that is one."""

Named = TypeVar("Named", bound=Callable[..., Any])


def choice(kind: str, name: str) -> Callable[[Named], Named]:
    """Register a frozen dataclass, or a function, as the choice `name` of its kind.

    A class or function of the same name replaces it, so that a file or a notebook's cell may run again. Raises ValueError
    for a name in use otherwise.
    """

    home = warn_renamed("choice", kind, EARLIER[kind]) if kind == "weights" else kind

    def register(made: Named) -> Named:
        options = CHOICES.setdefault(home, {})
        if name in options and options[name].__qualname__ != made.__qualname__:
            raise ValueError(f"{home} {name!r} is registered twice")
        options[name] = made
        return made

    return register


def nested(kind: str) -> dict[str, str]:
    """Metadata of a dataclass field that holds another choice: `field(metadata=nested("advantage"))`."""
    return {"kind": kind}
