"""An event loop for callers that are not coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class EventLoop:
    """Runs coroutines to their end, one call after another, on one event loop.

    Where the calling thread runs an event loop already, as a notebook does, the coroutine runs in a thread of its own
    while the caller waits. Ctrl-C cancels the coroutine, and is raised when that has ended.

    Example:
        >>> with EventLoop() as loop:
        ...     groups = loop.run(run_groups(engine, tasks, …))
    """

    def __init__(self) -> None:
        self._runners: list[asyncio.Runner] = []
        self._finalizer = weakref.finalize(self, _close, self._runners)

    def run(self, main: Coroutine[Any, Any, _Result]) -> _Result:
        """What the coroutine returns or raises. An exception ends every task that it has left behind."""
        if not self._runners:
            self._runners.append(asyncio.Runner())
        try:
            if _running():
                return _in_thread(self._runners[0], main)
            return self._runners[0].run(main)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the loop and what runs on it; the next `run` begins another one."""
        _close(self._runners)

    def __enter__(self) -> EventLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_thread(runner: asyncio.Runner, main: Coroutine[Any, Any, _Result]) -> _Result:
    results: list[_Result] = []
    errors: list[BaseException] = []
    tasks: list[asyncio.Task[_Result]] = []

    async def noted() -> _Result:
        tasks.append(asyncio.ensure_future(main))
        return await tasks[0]

    def work() -> None:
        try:
            results.append(runner.run(noted()))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        if tasks:
            runner.get_loop().call_soon_threadsafe(tasks[0].cancel)
        thread.join()
        raise
    if errors:
        raise errors[0]
    return results[0]


def _close(runners: list[asyncio.Runner]) -> None:
    while runners:
        runner = runners.pop()
        if _running():
            thread = threading.Thread(target=_end, args=(runner,))
            thread.start()
            thread.join()
        else:
            _end(runner)


def _end(runner: asyncio.Runner) -> None:
    """Cancel every task, wait until all have ended, and close. `Runner.close` leaves tasks behind a second interrupt."""
    loop = runner.get_loop()
    while tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        with contextlib.suppress(KeyboardInterrupt, SystemExit):  # of a task; the caller has one of its own to raise
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    runner.close()
