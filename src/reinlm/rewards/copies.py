"""Copies of functions that no other process can import: of a notebook or the main program, lambdas and closures.

The copy goes from this process to a worker alone, so what the worker reads is the user's own code; replies are JSON.
"""

from __future__ import annotations

import base64
import dis
import inspect
import io
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

LARGEST_COPY = 32 << 20
"""Bytes that a copy may have; a function that holds more, such as a model, runs in the process that holds it."""

CHANGING = frozenset({
    "append", "appendleft", "extend", "insert", "add", "update", "setdefault", "pop", "popleft", "popitem", "remove",
    "discard", "clear", "sort", "reverse", "write", "put", "put_nowait", "send", "set",
})  # fmt: skip
"""Methods that change what they belong to."""


class NoCopyError(Exception):
    """Why a function has no copy, as the rest of a sentence: `it holds a model`."""


def copied(function: Callable[..., Any]) -> str:
    """A copy of `function` as text, which `restored` reads.

    Raises:
        NoCopyError: what is no function, but an object, which has a state that the program may read; a function that changes
            variables of the program, which a copy could not; one that holds a model or what cannot be copied.
    """
    if not inspect.isfunction(function):
        raise NoCopyError("it is an object, whose state is here")
    for one in _own_functions(function):
        if (name := _changed(one)) is not None:
            raise NoCopyError(f"it changes {name!r} of the program")
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # untyped
        def persistent_id(self, value: Any) -> None:
            kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__}
            if kinds & {"torch.nn.modules.module.Module", "torch.Tensor"}:
                raise NoCopyError("it holds a model or a tensor")

    file = _Limited()
    try:
        Pickler(file).dump(function)
    except NoCopyError:
        raise
    except Exception as error:
        raise NoCopyError(f"it cannot be copied ({type(error).__name__}: {str(error)[:100]})") from error
    return base64.b64encode(file.getvalue()).decode()


def restored(text: str) -> Callable[..., Any]:
    """The function of a copy that this user's main process made; raises whatever its imports raise."""
    import pickle

    function: Callable[..., Any] = pickle.loads(base64.b64decode(text))  # noqa: S301  the user's own code
    return function


class _Limited(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > LARGEST_COPY:
            raise NoCopyError(f"it holds more than {LARGEST_COPY >> 20} MiB")
        return super().write(data)


def _own_functions(function: FunctionType) -> Iterator[FunctionType]:
    """The function, and those that it uses of the main program or its closure: they are copied with it."""
    found, waiting = [function], [function]
    while waiting:
        one = waiting.pop()
        yield one
        for value in _captured(one).values():
            if isinstance(value, FunctionType) and value not in found and value.__module__ == function.__module__:
                found.append(value)
                waiting.append(value)


def _captured(function: FunctionType) -> dict[str, Any]:
    """By name: the variables of the program that a function uses."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    for code in _codes(function.__code__):
        for name in code.co_names:
            if name in function.__globals__:
                found.setdefault(name, function.__globals__[name])
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code, and that of what is defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _changed(function: FunctionType) -> str | None:
    """A variable of the program that a function seems to change; None where none is found.

    Found are `global` and `nonlocal` assignments, calls of methods such as `append`, and assignments to items and
    attributes in a function that uses a list, dict, set or object of the program.
    """
    captured = _captured(function)
    free = set(function.__code__.co_freevars)
    holders = [name for name, value in captured.items() if _is_changeable(value)]
    for code in _codes(function.__code__):
        before = ""
        for step in dis.get_instructions(code):
            name = str(step.argval)
            if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") or (step.opname == "STORE_DEREF" and name in free):
                return name
            if step.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")) and before in holders and name in CHANGING:
                return before
            if step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_ATTR") and (used := _used(code, holders)):
                return used
            before = name if step.opname.startswith(("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME")) else ""
    return None


def _used(code: CodeType, holders: list[str]) -> str | None:
    return next((name for name in holders if name in code.co_names or name in code.co_freevars), None)


def _is_changeable(value: Any) -> bool:
    """Whether a value has contents that a method or an assignment may change; code and modules count as fixed."""
    if isinstance(value, list | dict | set | bytearray):
        return True
    return hasattr(value, "__dict__") and not (
        inspect.ismodule(value) or inspect.isroutine(value) or inspect.isclass(value)
    )
