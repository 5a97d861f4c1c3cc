"""One call of a reward function, in a worker or in this process: its arguments, its awaiting, and what it logged."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import re
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from reinlm.errors import error_line, file_of
from reinlm.rewards.retries import may_pass
from reinlm.rewards.signature import LOGGERS, Parameters, for_one
from reinlm.rewards.values import Cause, Entry, Failure, read_entry, read_result
from reinlm.sandbox.worker import IN_WORKER

T = TypeVar("T")

OVERRUN_HINT = "make it faster, or raise reward.time_limit"


@dataclass
class Logged:
    """What a function logged in a call."""

    metrics: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By name: the sum of the values, and how many there were."""
    extra: dict[str, list[Any]] = field(default_factory=dict)
    """By column: an entry for each answer."""

    def log_metric(self, name: str, value: Any) -> None:
        """Log a number, which is averaged with the others of that name over the step; TRL's `log_metric`."""
        if not isinstance(name, str) or re.fullmatch(r"[\w./@%()=-]+", name) is None:
            raise TypeError(f"log_metric takes a name of letters, digits and ./@%()=_- only, not {name!r}")
        number = float(value.item() if hasattr(value, "item") else value)
        if not math.isfinite(number):
            raise ValueError(f"log_metric({name!r}, {value!r}): the value must be finite")
        total, count = self.metrics.get(name, (0.0, 0))
        self.metrics[name] = total + number, count + 1

    def log_extra(self, column: str, values: Any) -> None:
        """Log a column with a value for each answer of the call, written as text; TRL's `log_extra`."""
        self.extra.setdefault(str(column), []).extend(
            value if value is None or isinstance(value, bool | int | float | str) else str(value) for value in values
        )


@dataclass(frozen=True)
class Function:
    """A reward function with its signature.

    Args:
        concurrency: answers that an async function of one answer scores at the same time.
    """

    call: Callable[..., Any]
    parameters: Parameters
    concurrency: int = 1

    def score(
        self, arguments: Mapping[str, Any], count: int, limit: float | None = None
    ) -> tuple[list[Entry] | Failure, Logged]:
        """The entries of `count` answers, or why there are none.

        Args:
            arguments: lists with an entry for each answer, and `trainer_state`.
            limit: seconds that an async function may take for one answer; None for no limit.
        """
        logged = Logged()
        given = dict(arguments)
        for name in LOGGERS:
            if name in self.parameters.names:
                given[name] = getattr(logged, name)
        if self.parameters.style == "lists":
            found = self._all(given, count)
        elif self.parameters.asynchronous:
            found = wait_for(self._gathered(given, count, limit, logged))
        else:
            found = [self._one(given, index, logged) for index in range(count)]
        return found, logged

    def _all(self, given: Mapping[str, Any], count: int) -> list[Entry] | Failure:
        try:
            result = self.call(**given)
            return read_result(wait_for(result) if inspect.isawaitable(result) else result, count)
        except BaseException as error:
            if _is_interrupt(error):
                raise
            return self._failure(error)

    def _one(self, given: Mapping[str, Any], index: int, logged: Logged) -> Entry:
        try:
            result = self.call(**for_one(self.parameters, given, index))
            return self._entry(wait_for(result) if inspect.isawaitable(result) else result, logged)
        except BaseException as error:
            if _is_interrupt(error):
                raise
            return self._failure(error)

    async def _gathered(
        self, given: Mapping[str, Any], count: int, limit: float | None, logged: Logged
    ) -> list[Entry] | Failure:
        gate = asyncio.Semaphore(self.concurrency)

        async def one(index: int) -> Entry:
            async with gate:
                try:
                    async with asyncio.timeout(limit) as timer:
                        result = await self.call(**for_one(self.parameters, given, index))
                except BaseException as error:
                    if _is_interrupt(error) or isinstance(error, asyncio.CancelledError):
                        raise
                    if isinstance(error, TimeoutError) and timer.expired():
                        return Failure(f"overran its time limit of {limit:g} s", OVERRUN_HINT, "overran")
                    return self._failure(error)
                return self._entry(result, logged)

        return list(await asyncio.gather(*(one(index) for index in range(count))))

    def _entry(self, result: Any, logged: Logged) -> Entry:
        if self.parameters.style == "verl" and isinstance(result, Mapping) and "score" in result:
            for name, value in result.items():
                if name != "score" and isinstance(value, bool | int | float):
                    logged.log_metric(str(name), value)
            result = result["score"]
        entry = read_entry(result)
        if isinstance(entry, Failure) and isinstance(result, list | tuple):
            hint = "a function of `completion` scores one answer: return one number, or take `completions`"
            return Failure(entry.text, hint)
        return entry

    def _failure(self, error: BaseException) -> Failure:
        cause: Cause = "passing" if may_pass(error) else "raised"
        return Failure(f"raised {error_line(error, file_of(self.call))}", cause=cause)


def _is_interrupt(error: BaseException) -> bool:
    """Ctrl-C in the main program; a KeyboardInterrupt that a function raises elsewhere is an error like any other."""
    here = threading.current_thread() is threading.main_thread() and not os.environ.get(IN_WORKER)
    return isinstance(error, KeyboardInterrupt) and here


def wait_for(awaitable: Any) -> Any:
    """The result of an awaitable, in a new event loop."""

    async def result() -> Any:
        return await awaitable

    return _run(result())


def _run(main: Coroutine[Any, Any, T]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main)
    with ThreadPoolExecutor(1) as thread:  # a notebook's loop runs in this thread already, and loops do not nest
        return thread.submit(asyncio.run, main).result()
