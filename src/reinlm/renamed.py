"""Earlier names of modules' contents and of attributes: still accepted, with a FutureWarning that gives the new name."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Mapping
from typing import Any


def renamed(module: str, names: Mapping[str, str], removed: Mapping[str, str] | None = None) -> None:
    """Give a module the `__getattr__` that finds what was renamed, moved or removed.

    It is set, not defined in the module, because a type checker takes every name for one of a module that defines
    `__getattr__`. If the module defines one, that is asked for other names. The new place is imported at the first
    access, so a module may name one that imports it.

    Args:
        names: earlier name -> "module:NAME", or "module" for a whole module.
        removed: earlier name without an equivalent -> what to use instead. It is an ImportError that says so:
            Python replaces the text of an AttributeError in `from module import NAME` by its own.

    Example:
        renamed(__name__, {"Scores": "reinlm.models:Outputs"})
    """

    own = vars(sys.modules[module]).get("__getattr__")

    def find(name: str) -> Any:
        if removed and name in removed:
            raise ImportError(f"{module}.{name} is removed: use {removed[name]}")
        if name not in names and own is not None:
            return own(name)
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, new = names[name].partition(":")
        if not new:
            warnings.warn(f"{module}.{name} is named {place}; import {place}", FutureWarning, stacklevel=2)
            return importlib.import_module(place)
        warnings.warn(f"{module}.{name} is named {place}.{new}; import {new} from {place}", FutureWarning, stacklevel=2)
        return getattr(importlib.import_module(place), new)

    vars(sys.modules[module])["__getattr__"] = find


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
