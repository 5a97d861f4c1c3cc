"""The processes that a process has started, those that left its process group included. Linux alone."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 100  # processes that start others faster than they are found are given up


def adopt_orphans() -> None:
    """Become the parent of what this process's descendants leave behind, so that `kill_descendants` finds it.

    See prctl(2), PR_SET_CHILD_SUBREAPER. Does nothing on other systems.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants(pid: int) -> None:
    """Kill all that the process has started, and what these start meanwhile. Does nothing on other systems."""
    for _ in range(_ROUNDS) if sys.platform == "linux" else ():
        found = _descendants(pid)
        if not found:
            return
        for one in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """Its children, their children and so on, without those that have ended."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(folder.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        mine = children.get(waiting.pop(), [])
        found += mine
        waiting += mine
    return found
