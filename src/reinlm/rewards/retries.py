"""Which errors of a reward function may pass, and how long to wait before the next attempt."""

from __future__ import annotations

import random
from typing import Any

_STAYING = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError, NameError,
    NotImplementedError, RecursionError, SyntaxError, TypeError, ValueError,
)  # fmt: skip
"""Errors of the code or of one answer, which another attempt meets again."""

_STAYING_FILES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)

_PASSING_REFUSALS = (408, 409, 425, 429)
"""HTTP statuses of 400 to 499 that may pass: timeout, conflict, too early, too many requests."""

_jitter = random.Random()
"""Its own generator: waiting draws nothing from that of the run."""

LONGEST_DELAY = 60.0
"""Seconds between two attempts at most."""


def may_pass(error: BaseException) -> bool:
    """Whether another attempt may meet no error: one of the network, the system or a library, not of the code or the answer.

    An error with an HTTP status (`error.status_code`, `.status`, `.code`, or that of its `response`) is judged by it.

        >>> may_pass(ConnectionResetError()), may_pass(ValueError("no number"))
        (True, False)
    """
    if not isinstance(error, Exception):
        return False
    status = _status(error)
    if status is not None and 400 <= status < 500:
        return status in _PASSING_REFUSALS
    if isinstance(error, OSError):
        return not isinstance(error, _STAYING_FILES)
    return not isinstance(error, _STAYING)


def delay(attempt: int, first: float) -> float:
    """Seconds to wait before the attempt (from 1, the first repetition): `first · 2^(attempt - 1)`, less up to half at random.

    So callers that failed together do not come back together. At most `LONGEST_DELAY`.
    """
    return min(first * 2.0 ** (attempt - 1), LONGEST_DELAY) * (1.0 - 0.5 * _jitter.random())


def _status(error: BaseException) -> int | None:
    response: Any = getattr(error, "response", None)
    for owner in (error, response):
        for name in ("status_code", "status", "code"):
            value = getattr(owner, name, None)
            if type(value) is int:
                return value
    return None
