"""One task that advances an engine, for any number of coroutines that wait for its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from reinlm.errors import RunError
from reinlm.rollouts.protocol import Completion, Request


class Stepped(Protocol):
    """An engine that advances by a token with each call of `step`."""

    @property
    def in_flight(self) -> int: ...

    def submit(self, requests: Iterable[Request]) -> None: ...

    def step(self) -> Sequence[Completion]: ...

    def abort(self, ids: Iterable[str]) -> None: ...


class Driver:
    """Steps the engine while calls are waiting, and lets other coroutines run between two steps.

    Requests are submitted at once and in the order of the calls; the first step comes after every coroutine that was
    ready to run at the first call has made its own.
    """

    def __init__(self, engine: Stepped) -> None:
        self._engine = engine
        self._waiting: dict[str, asyncio.Future[Completion]] = {}
        self._task: asyncio.Task[None] | None = None

    async def generate(self, request: Request) -> Completion:
        """The completion of one request. Cancelling the call aborts the request.

        Raises:
            InputError: what the engine refuses.
            RunError: requests were submitted to the engine past the driver.
            Exception: what a step of the engine raised; every waiting call gets it.
        """
        others = self._engine.in_flight - len(self._waiting)
        if others:
            raise RunError(f"the engine has {others} other requests in flight", hint="step or abort them first")
        self._engine.submit([request])
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = answer
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drive())
        try:
            return await answer
        finally:
            if self._waiting.get(request.id) is answer:
                del self._waiting[request.id]
                self._engine.abort([request.id])

    async def _drive(self) -> None:
        try:
            while self._waiting:
                for completion in self._engine.step():
                    answer = self._waiting.pop(completion.id)
                    if not answer.done():
                        answer.set_result(completion)
                await asyncio.sleep(0)
        except BaseException as error:
            waiting, self._waiting = self._waiting, {}
            self._engine.abort(waiting)
            for answer in waiting.values():
                if answer.done():
                    continue
                if isinstance(error, Exception):
                    answer.set_exception(error)
                else:
                    answer.cancel()
            if not isinstance(error, Exception):
                raise
