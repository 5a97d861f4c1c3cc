"""The lock of a run folder: one process writes it."""

from __future__ import annotations

import os
from pathlib import Path

from reinlm.errors import InputError

LOCK_FILE = ".lock"

_held: set[int] = set()  # descriptors of the locks that this process holds


def check_free(path: Path) -> None:
    """Raises InputError where another run holds the folder's lock."""
    if (path / LOCK_FILE).is_file() and os.access(path / LOCK_FILE, os.W_OK):
        descriptor = _lock(path)
        if descriptor is not None:
            os.close(descriptor)


def _in_use(path: Path, owner: str) -> InputError:
    if owner == str(os.getpid()):
        return InputError(
            f"{path} is being written by another run of this process",
            hint="end that one first (trainer.close()), or give another folder",
        )
    return InputError(
        f"{path} is being written by another process ({owner or 'unknown'})",
        hint="wait for it to end, or give another folder",
    )


def acquire(path: Path) -> int | None:
    """Hold the folder's lock until `release` or the end of the process; None where the system has no such lock."""
    descriptor = _lock(path)
    if descriptor is None:
        return None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    if not _registered:
        os.register_at_fork(after_in_child=_forget)
        _registered.append(True)
    _held.add(descriptor)
    return descriptor


def _lock(path: Path) -> int | None:
    """A descriptor that holds the lock. Raises InputError where another one holds it."""
    try:
        import fcntl
    except ImportError:
        return None
    descriptor = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 20).decode(errors="replace").strip()
        os.close(descriptor)
        raise _in_use(path, owner) from None
    except OSError:  # some network file systems know no locks
        os.close(descriptor)
        return None
    return descriptor


_registered: list[bool] = []


def _forget() -> None:
    """In a forked child: a worker that outlives a killed run must not keep its folder locked."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


def release(lock: int | None) -> None:
    if lock in _held:
        _held.discard(lock)
        os.close(lock)
