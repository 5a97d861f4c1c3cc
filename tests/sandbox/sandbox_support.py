"""A service for the tests of the sandbox: what a worker process serves from this module."""

from __future__ import annotations

import os
import time
from typing import Any

from reinlm.plain import encode


def same(value: Any) -> Any:
    """`value`, which came decoded, encoded again, with its type."""
    return [type(value).__name__, encode(value)]


def sleep(seconds: float, value: Any = None) -> Any:
    """`value`, later."""
    time.sleep(seconds)
    return value


def note(path: str, text: str) -> None:
    """Add a line to a file."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(text + "\n")


def fail(text: str) -> None:
    raise ValueError(text)


METHODS = {"same": same, "sleep": sleep, "note": note, "fail": fail, "pid": os.getpid, "leave": os._exit}
