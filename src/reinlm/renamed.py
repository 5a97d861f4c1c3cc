"""Earlier names of modules' contents and of attributes: still accepted, with a FutureWarning that gives the new name."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a module whose contents were renamed or moved.

    The new place is imported at the first access, so a module may name one that imports it.

    Args:
        names: earlier name -> "module:NAME".

    Example:
        __getattr__ = renamed(__name__, {"Scores": "reinlm.models:Outputs"})
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, new = names[name].partition(":")
        warnings.warn(f"{module}.{name} is named {place}.{new}; import {new} from {place}", FutureWarning, stacklevel=2)
        return getattr(importlib.import_module(place), new)

    return find


class RenamedAttribute:
    """The earlier name of a property or method, in the body of its class.

    Args:
        new: the name that it has in the same class.

    Example:
        class Algorithm:
            charge = RenamedAttribute("adjust_rewards")
    """

    def __init__(self, new: str) -> None:
        self.new = new
        self.old = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.old = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        warnings.warn(f"{owner.__name__}.{self.old} is named {self.new}", FutureWarning, stacklevel=2)
        return getattr(instance, self.new)
