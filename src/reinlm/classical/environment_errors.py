"""One line for an exception that code of the environment raised."""

from __future__ import annotations

import inspect

from reinlm.classical.environments import EnvLike, maker_of, name_of
from reinlm.errors import InputError, ReinlmError, RunError, error_line


def environment_error(error: Exception, env: EnvLike) -> RunError | None:
    """One line for an exception that code of the environment raised, with its file and line; None for any other.

    Example: `walk.py:Walk` divides by zero in `step`:
        RunError("environment walk.py:Walk: ZeroDivisionError: division by zero (walk.py:12)")
    """
    if isinstance(error, ReinlmError):
        return None
    try:
        file = inspect.getfile(maker_of(env))
    except (InputError, ImportError, AttributeError, TypeError):
        return None
    line = error_line(error, file)
    return RunError(f"environment {name_of(env)}: {line}") if line.endswith(")") and f"({file}:" in line else None
