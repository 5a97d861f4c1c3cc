"""Errors that a user can act on."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import traceback
from collections.abc import Iterable
from typing import Any


class ReinlmError(Exception):
    """Something that the user can correct: one line that names the cause, and a hint.

    The command line prints `error: MESSAGE` and `hint: HINT` on standard error and exits with 2.

    Example:
        raise ReinlmError("train.jsonl:17: column 'prompt' is empty", hint="remove the row or set data.on_bad_row=skip")
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[type[ReinlmError], tuple[str, str | None]]:
        return type(self), (self.message, self.hint)


class InputError(ReinlmError, ValueError):
    """A value, file or option that cannot be used; also a `ValueError` for callers from Python."""


class RunError(ReinlmError, RuntimeError):
    """A run that cannot go on: a reward that hangs, a loss that is not finite, no group left to train on."""


def plain_name(name: str) -> str:
    """A name without what two spellings of it may differ in: case, hyphens, underscores, spaces and dots.

    Example:
        >>> plain_name("Dr. GRPO"), plain_name("dr_grpo"), plain_name("REINFORCE++")
        ('drgrpo', 'drgrpo', 'reinforcepp')
    """
    return re.sub(r"[-_ .]", "", name.lower().replace("++", "pp"))


def find_name(name: str, allowed: Iterable[str]) -> str | None:
    """The allowed name that `name` is another spelling of (`plain_name`), or None."""
    names = list(allowed)
    same = [known for known in names if plain_name(known) == plain_name(name)]
    return name if name in names else same[0] if len(same) == 1 else None


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """The most similar allowed name, or None; case, hyphens and underscores make no difference."""
    names = {plain_name(known): known for known in allowed}
    matches = difflib.get_close_matches(plain_name(name), list(names), n=1, cutoff=0.6)
    return names[matches[0]] if matches else None


def unknown(kind: str, name: str, allowed: Iterable[str]) -> InputError:
    """An `InputError` for a name that is not among the allowed ones, with the most similar one as a hint."""
    names = sorted(allowed)
    near = nearest(name, names)
    listing = ", ".join(names)
    hint = f"did you mean {near!r}? Allowed: {listing}" if near else f"allowed: {listing}"
    return InputError(f"unknown {kind} {name!r}", hint=hint)


def error_line(error: BaseException, file: str | None = None) -> str:
    """One line for an exception, with the last line of `file` that it came through: `ValueError: boom (a.py:12)`."""
    try:
        text = " ".join(str(error).split())[:300]
    except Exception:  # noqa: BLE001 - a user's exception may fail to print itself
        text = "(its message cannot be printed)"
    name = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if file is not None and frame.filename == file]
    place = ""
    if isinstance(error, SyntaxError) and error.filename:
        text, place = str(error.msg), f" ({error.filename}:{error.lineno})"
    elif inside:
        place = f" ({inside[-1].filename}:{inside[-1].lineno})"
    return f"{name}: {text}{place}" if text else f"{name}{place}"


def file_of(function: Any) -> str | None:
    """The file that defines a function, a method or the class of a callable object; None if it is not Python code."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isclass(function):
        function = function.__init__
    found = inspect.unwrap(function)
    if not hasattr(found, "__code__"):
        found = getattr(type(found), "__call__", None)  # noqa: B004  what a call of the object runs
    code = getattr(found, "__code__", None)
    return code.co_filename if code is not None else None
