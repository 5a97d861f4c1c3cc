"""`WorkerPool`: a queue of tasks, each run in a thread that has a worker process."""

from __future__ import annotations

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


class WorkerPool:
    """A queue of tasks for `width` worker processes; each starts when there is work for it.

    With `width=1` tasks run strictly in order in one process, which keeps the state of modules between tasks.

    Example:
        pool = WorkerPool("reinlm.rewards.service")
        result = pool.submit(lambda worker: worker.call("load", {"key": 0, "source": source}, limit=300.0)).result()
    """

    def __init__(self, service: str, width: int = 1) -> None:
        self._workers = [Worker(service) for _ in range(width)]
        self._idle: LifoQueue[Worker] = (
            LifoQueue()
        )  # the last one used first: a second process starts when it is needed
        for worker in self._workers:
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
        for worker in self._workers:
            worker.close()

    def _run(self, task: Callable[[Worker], T], stop: threading.Event) -> T:
        worker = self._idle.get()
        worker.stop = stop
        try:
            return task(worker)
        finally:
            self._idle.put(worker)
