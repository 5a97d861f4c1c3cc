"""Shapes are checked at run time wherever a signature names one, by jaxtyping and beartype.

jaxtyping's import hook decorates every function and dataclass with `jaxtyping.jaxtyped`, which binds the arguments of each call a
second time. `install` puts the function below in its place: a signature without a shape stays as it is.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import beartype
import jaxtyping

OWN_CHECKS = {"Algorithm.objective"}
"""They refuse wrong shapes themselves, with messages for users."""
SHAPES = ("Float[", "Int[", "Bool[", "Shaped[", "jaxtyping")
_check: Any = beartype.beartype(
    conf=beartype.BeartypeConf(is_pep484_tower=True)
)  # an int is a float, as for type checkers
_jaxtyped: Any = jaxtyping.jaxtyped


def names_a_shape(function: Callable[..., Any]) -> bool:
    """Whether one of the annotations of a function is a shape, and its shapes are not its own matter."""
    annotations = getattr(function, "__annotations__", {}).values()
    named = any(shape in str(annotation) for annotation in annotations for shape in SHAPES)
    return named and getattr(function, "__qualname__", "") not in OWN_CHECKS


def jaxtyped(decorated: Any = None, *, typechecker: Any = None) -> Any:
    """`jaxtyping.jaxtyped` for signatures that name a shape, what was given for all others."""
    if decorated is None:
        return jaxtyped
    functions = [decorated.__init__] if inspect.isclass(decorated) else [decorated]
    if isinstance(decorated, property):
        functions = [function for function in (decorated.fget, decorated.fset, decorated.fdel) if function is not None]
    elif isinstance(decorated, classmethod | staticmethod):
        functions = [decorated.__func__]
    return _jaxtyped(decorated, typechecker=_check) if any(map(names_a_shape, functions)) else decorated


@contextlib.contextmanager
def install(package: str) -> Any:
    """Modules of a package that are imported within have their shapes checked; also functions that they define later."""
    jaxtyping.jaxtyped = jaxtyped  # type: ignore[assignment]
    with jaxtyping.install_import_hook(package, None):
        yield
