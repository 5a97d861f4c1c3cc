"""What jaxtyping's import hook decorates functions with: shapes are checked wherever a signature names one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import beartype

OWN_CHECKS = {"Algorithm.objective"}
"""They refuse wrong shapes themselves, with messages for users."""
SHAPES = ("Float[", "Int[", "Bool[", "Shaped[")
_check: Any = beartype.beartype(
    conf=beartype.BeartypeConf(is_pep484_tower=True)
)  # an int is a float, as for type checkers


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its annotations checked at every call, where one of them is a shape."""
    annotations = getattr(function, "__annotations__", {}).values()
    named = any(shape in str(annotation) for annotation in annotations for shape in (*SHAPES, "jaxtyping"))
    named = named and getattr(function, "__qualname__", "") not in OWN_CHECKS
    return _check(function) if named else function
