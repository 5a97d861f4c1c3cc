"""`WorkerPool`: a queue of tasks, each run in a thread that has a worker process."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import LifoQueue
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from reinlm.errors import RunError
from reinlm.sandbox.worker import Worker

T = TypeVar("T")

_kept: dict[tuple[int, str], list[Worker]] = {}
"""By owner and service: the workers of closed pools that the next pool takes."""


class WorkerPool:
    """A queue of tasks for `width` worker processes; each starts when there is work for it.

    With `width=1` tasks run strictly in order in one process, which keeps the state of modules between tasks.

    Example:
        pool = WorkerPool("reinlm.rewards.service")
        result = pool.submit(lambda worker: worker.call("load", {"key": 0, "source": source}, limit=300.0)).result()
    """

    def __init__(self, service: str, width: int = 1, *, keep: bool = False) -> None:
        """`keep`: `close` leaves its processes to the next such pool of this process, which need not start them: for
        services that run no code but reinlm's, and whose state no other pool can see."""
        self._keep = keep
        spare = _kept.setdefault((os.getpid(), service), []) if keep else []
        self._service = service
        self._workers = [spare.pop() if spare else Worker(service) for _ in range(width)]
        self._idle: LifoQueue[Worker] = LifoQueue()
        for worker in reversed(
            self._workers
        ):  # the last one in is used first: a second process starts when it is needed
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(width)
        self._stops: WeakKeyDictionary[Future[Any], threading.Event] = WeakKeyDictionary()
        self._owner = os.getpid()

    def submit(self, task: Callable[[Worker], T]) -> Future[T]:
        """Queue a task; the future has what it returns or raises. `asyncio.wrap_future` makes it awaitable."""
        if os.getpid() != self._owner:
            raise RunError("these worker processes belong to the process that this one was forked from")
        stop = threading.Event()
        future = self._threads.submit(self._run, task, stop)
        self._stops[future] = stop
        return future

    def cancel(self, future: Future[Any]) -> None:
        """Take a task out of the queue, or end the call that it is in and the process of that call."""
        future.cancel()
        self._stops[future].set()

    def close(self) -> None:
        """End calls in flight, threads and processes. A process forked from the owner leaves them alone."""
        if os.getpid() != self._owner:
            return
        for future in list(self._stops):
            self.cancel(future)
        with suppress(RuntimeError):  # the garbage collector may close the pool from within one of its threads
            self._threads.shutdown()
        while self._keep and not self._idle.empty():
            if (worker := self._idle.get()).running:
                self._workers.remove(worker)
                _kept[self._owner, self._service].append(worker)
        for worker in self._workers:
            worker.close()

    def _run(self, task: Callable[[Worker], T], stop: threading.Event) -> T:
        worker = self._idle.get()
        worker.stop = stop
        try:
            return task(worker)
        finally:
            self._idle.put(worker)


@atexit.register
def end_kept() -> None:
    """End the processes that closed pools have left for later ones."""
    for (owner, _), workers in _kept.items():
        while owner == os.getpid() and workers:
            workers.pop().close()
