"""An event loop for callers that are not coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class EventLoop:
    """Runs coroutines to their end, one call after another, on one event loop.

    Where the calling thread runs an event loop already, as a notebook does, the coroutine runs in a thread of its own
    while the caller waits. `run` is called from one thread at a time. Ctrl-C cancels the coroutine, and is raised when that
    has ended.

    Example:
        with EventLoop() as loop:
            groups = loop.run(run_groups(engine, tasks, …))
    """

    def __init__(self) -> None:
        self._runners: list[asyncio.Runner] = []
        self._lock = threading.Lock()
        self._current: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._cancelled = False
        self._finalizer = weakref.finalize(self, _close, self._runners)

    def run(self, main: Coroutine[Any, Any, _Result]) -> _Result:
        """What the coroutine returns or raises. An exception cancels every task that the coroutine has started."""
        if not self._runners:
            self._runners.append(asyncio.Runner())
        runner = self._runners[0]
        started: list[asyncio.Task[Any]] = []
        found: list[_Result] = []

        async def noted() -> None:
            """Keeps the result out of the task: `Runner.run` makes the task's text, its result included, as it ends."""
            task = asyncio.current_task()
            assert task is not None
            started.append(task)
            try:
                with self._cancellable(task):
                    found.append(await main)
            finally:
                main.close()  # it may not have begun

        try:
            if _running():
                _in_thread(runner, noted(), started)
            else:
                runner.run(noted())
            return found.pop()
        except BaseException:
            self._runners.clear()
            _away_from_loops(lambda: _end(runner, started))
            raise

    def cancel(self) -> None:
        """From another thread: end the coroutine that runs now, and every later one, by `asyncio.CancelledError`."""
        with self._lock:
            self._cancelled = True
            if self._current is not None:
                loop, task = self._current
                loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        """End the loop and what runs on it; the next `run` begins another one."""
        _close(self._runners)

    @contextlib.contextmanager
    def _cancellable(self, task: asyncio.Task[Any]) -> Iterator[None]:
        """Within it `cancel` reaches the task."""
        with self._lock:
            if self._cancelled:
                raise asyncio.CancelledError
            self._current = asyncio.get_running_loop(), task
        try:
            yield
        finally:
            with self._lock:
                self._current = None

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


def _in_thread(runner: asyncio.Runner, main: Coroutine[Any, Any, None], started: Sequence[asyncio.Task[Any]]) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            runner.run(main)
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        if started:
            runner.get_loop().call_soon_threadsafe(started[0].cancel)
        thread.join()
        raise
    if errors:
        raise errors[0]


def _end(runner: asyncio.Runner, started: Sequence[asyncio.Task[Any]]) -> None:
    """Close the loop when its main task has ended.

    An interrupt that was raised inside a task leaves the main one behind. It is cancelled once, and so cancels what it
    has begun, which can then give back what it holds; every task that was interrupted too stops the loop again. An
    interrupt while no task ends gives up.
    """
    loop = runner.get_loop()
    for main in started:
        main.cancel()
        before: set[asyncio.Task[Any]] = set()
        while not main.done():
            running = asyncio.all_tasks(loop)
            if before and before <= running:
                break
            before = running
            with contextlib.suppress(BaseException):  # the caller has an error of its own to raise
                loop.run_until_complete(main)
    runner.close()


def _close(runners: list[asyncio.Runner]) -> None:
    while runners:
        _away_from_loops(runners.pop().close)


def _away_from_loops(call: Callable[[], None]) -> None:
    """Call here, or in a thread where an event loop runs here."""
    if not _running():
        call()
        return
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
