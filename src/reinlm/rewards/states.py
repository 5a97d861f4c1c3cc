"""The state of rewards that are objects: those with `state_dict` keep it in checkpoints, others may lose it on a resume."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from reinlm.errors import InputError, RunError, error_line, file_of

_METHODS = ("state_dict", "load_state_dict")
_FIRST = frozenset({"__init__", "__new__", "__post_init__", *_METHODS})
"""Methods that make an object, or move its state."""
_GENERATORS = frozenset(
    {"random.Random", "numpy.random._generator.Generator", "numpy.random.mtrand.RandomState", "torch._C.Generator"}
)


def has_state(function: Any) -> bool:
    """Whether a reward function is an object that keeps a state in checkpoints.

    Raises:
        InputError: it has one of `state_dict` and `load_state_dict` without the other.
    """
    if inspect.isroutine(function) or inspect.isclass(function):
        return False
    given = [name for name in _METHODS if callable(getattr(function, name, None))]
    if len(given) == 1:
        other = _METHODS[1 - _METHODS.index(given[0])]
        raise InputError(
            f"it has {given[0]} and no {other}: a resumed run would lose its state", hint=f"write {other} too"
        )
    return bool(given)


def state_of(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """A copy of the state of the reward of this name; `RunError` for what no checkpoint can hold."""
    from reinlm.runs.state import copy_state

    try:
        state = function.state_dict()  # type: ignore[attr-defined]
    except Exception as error:
        raise RunError(f"reward {name!r} failed in state_dict: {error_line(error, file_of(function))}") from error
    if not isinstance(state, dict):
        raise RunError(f"reward {name!r} returned a state_dict: {state!r:.100} is no dict")
    try:
        return dict(copy_state(state))
    except TypeError as error:
        raise RunError(f"reward {name!r} returned a state_dict: {error}") from error


def load_state(name: str, function: Callable[..., Any], state: dict[str, Any]) -> None:
    """Restore what `state_of` returned."""
    try:
        function.load_state_dict(state)  # type: ignore[attr-defined]
    except Exception as error:
        raise RunError(f"reward {name!r} failed in load_state_dict: {error_line(error, file_of(function))}") from error


def lost_attribute(function: Any) -> str | None:
    """An attribute of an object without `state_dict` that its methods visibly change; None where there is none.

    Found are assignments to attributes, calls such as `self.seen.append(…)`, assignments to the items of an attribute, and
    random generators.

        >>> class Counter:
        ...     def __init__(self):
        ...         self.calls = 0
        ...     def __call__(self, completions):
        ...         self.calls += 1
        ...         return [0.0 for _ in completions]
        >>> lost_attribute(Counter())
        'calls'
    """
    if inspect.isroutine(function) or inspect.isclass(function) or has_state(function):
        return None
    held = getattr(function, "__dict__", {})
    for name, value in held.items():
        if f"{type(value).__module__}.{type(value).__qualname__}" in _GENERATORS:
            return str(name)
    containers = {name for name, value in held.items() if isinstance(value, list | dict | set)}
    for kind in type(function).__mro__[:-1]:
        for name, method in vars(kind).items():
            if isinstance(method, FunctionType) and name not in _FIRST and (found := _changed(method, containers)):
                return found
    return None


def _changed(method: FunctionType, containers: set[str]) -> str | None:
    """The attribute that a method changes, of those that hold a container or that it assigns to `self`."""
    from reinlm.rewards.copies import CHANGING

    code = method.__code__
    owner = code.co_varnames[0] if code.co_argcount else None
    before: tuple[str, str] = ("", "")
    for step in dis.get_instructions(code):
        name = str(step.argval)
        of_self = before[0].startswith("LOAD_FAST") and before[1].rpartition(",")[2].strip(" ')") == owner
        if step.opname in ("STORE_ATTR", "DELETE_ATTR") and (of_self or before[0] in ("SWAP", "ROT_TWO")):
            return name
        if step.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")) and before[1] in containers and name in CHANGING:
            return before[1]
        if step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") and (used := containers & {*code.co_names}):
            return min(used)
        before = (step.opname, name) if step.opname != "COPY" else before
    return None
