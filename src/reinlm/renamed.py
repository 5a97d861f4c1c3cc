"""Names that users import and that have moved: they are still taken, with a warning that says the new one."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def renamed(module: str, names: Mapping[str, str], removed: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """A module's `__getattr__` that finds earlier names where they are.

    A name is imported when it is asked for, so that a module may name one that stands above it.

    Args:
        names: earlier name -> "module:NAME", or "module" for a whole module.
        removed: earlier name without an equivalent -> what to use instead. It is an ImportError that says so:
            Python replaces the text of an AttributeError in `from module import NAME` by its own.

    Example:
        __getattr__ = renamed(__name__, {"Scores": "reinlm.models:Outputs"})
    """

    def find(name: str) -> Any:
        if removed and name in removed:
            raise ImportError(f"{module}.{name} is removed: use {removed[name]}")
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, new = names[name].partition(":")
        if not new:
            warnings.warn(f"{module}.{name} is named {place}; import {place}", FutureWarning, stacklevel=2)
            return importlib.import_module(place)
        warnings.warn(f"{module}.{name} is named {place}.{new}; import {new} from {place}", FutureWarning, stacklevel=2)
        return getattr(importlib.import_module(place), new)

    return find
