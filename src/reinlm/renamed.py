"""Names that users import and that have moved: they are still taken, with a warning that says the new one."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__` that finds earlier names where they are.

    A name is imported when it is asked for, so that a module may name one that stands above it.

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
