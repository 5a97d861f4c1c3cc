"""One call of a reward function, in a worker or in this process: its arguments, its awaiting, and what it logged."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import re
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
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
        try:
            number = float(value.item() if hasattr(value, "item") else value)
        except (TypeError, ValueError, RuntimeError, OverflowError):  # torch raises RuntimeError for several elements
            raise TypeError(f"log_metric({name!r}, {value!r:.60}): the value must be a number") from None
        if not math.isfinite(number):
            raise ValueError(f"log_metric({name!r}, {value!r}): the value must be finite")
        total, count = self.metrics.get(name, (0.0, 0))
        self.metrics[name] = total + number, count + 1

    def log_extra(self, column: str, values: Any) -> None:
        """Log a column with a value for each answer of the call, written as text; TRL's `log_extra`."""
        if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
            raise TypeError(f"log_extra({column!r}, {values!r:.60}) takes a list with a value for each answer")
        self.extra.setdefault(str(column), []).extend(
            value if value is None or isinstance(value, bool | int | float | str) else str(value) for value in values
        )

    def check(self, count: int) -> Failure | None:
        """What is wrong with a column that has no value for each of `count` answers."""
        for column, values in self.extra.items():
            if len(values) != count:
                hint = "give log_extra a list with one value for each answer of the call"
                return Failure(
                    f"logged {len(values)} values in the column {column!r} for {count} sample{'s' * (count != 1)}", hint
                )
        return None

    @property
    def loggers(self) -> dict[str, Callable[..., None]]:
        """What a function is given to log with."""
        return {name: getattr(self, name) for name in LOGGERS}

    def add(self, other: Logged) -> None:
        """Add what was logged in another call."""
        for name, (total, number) in other.metrics.items():
            before, count = self.metrics.get(name, (0.0, 0))
            self.metrics[name] = before + total, count + number


def joined(calls: Sequence[Logged]) -> Logged:
    """What was logged in calls of one answer each, in order; an answer that logged nothing in a column has None there."""
    whole = Logged()
    for one in calls:
        whole.add(one)
    for column in dict.fromkeys(column for one in calls for column in one.extra):
        whole.extra[column] = [values[0] if (values := one.extra.get(column)) else None for one in calls]
    return whole


@dataclass(frozen=True)
class Function:
    """A reward function with its signature.

    Args:
        concurrency: answers that an async function of one answer scores at the same time.
        read: reads what it returned for one answer, or for one pair.
    """

    call: Callable[..., Any]
    parameters: Parameters
    concurrency: int = 1
    read: Callable[[Any], Entry] = read_entry

    def score(
        self, arguments: Mapping[str, Any], count: int, limit: float | None = None
    ) -> tuple[list[Entry] | Failure, Logged]:
        """The entries of `count` answers, or why there are none.

        Args:
            arguments: lists with an entry for each answer, and `trainer_state`.
            limit: seconds that an async function may take for one answer; None for no limit.
        """
        if self.parameters.style == "lists":
            logged = Logged()
            found = self._all({**arguments, **self._loggers(logged)}, count)
            return found if isinstance(found, Failure) else logged.check(count) or found, logged
        several = [Logged() for _ in range(count)]
        if self.parameters.asynchronous:
            entries = wait_for(self._gathered(arguments, limit, several))
        else:
            entries = [self._one(arguments, index, logged) for index, logged in enumerate(several)]
        return entries, joined(several)

    def _loggers(self, logged: Logged) -> dict[str, Callable[..., None]]:
        """Those that it takes by name."""
        return {name: log for name, log in logged.loggers.items() if name in self.parameters.names}

    def _all(self, given: Mapping[str, Any], count: int) -> list[Entry] | Failure:
        try:
            result = self.call(**given)
            return read_result(wait_for(result) if inspect.isawaitable(result) else result, count, self.read)
        except BaseException as error:
            if _is_interrupt(error):
                raise
            return self._failure(error)

    def _one(self, given: Mapping[str, Any], index: int, logged: Logged) -> Entry:
        try:
            result = self.call(**for_one(self.parameters, {**given, **self._loggers(logged)}, index))
            return self._entry(wait_for(result) if inspect.isawaitable(result) else result, logged)
        except BaseException as error:
            if _is_interrupt(error):
                raise
            return self._failure(error)

    async def _gathered(self, given: Mapping[str, Any], limit: float | None, several: Sequence[Logged]) -> list[Entry]:
        gate = asyncio.Semaphore(self.concurrency)

        async def one(index: int, logged: Logged) -> Entry:
            async with gate:
                try:
                    async with asyncio.timeout(limit) as timer:
                        passed = {**given, **self._loggers(logged)}
                        result = await self.call(**for_one(self.parameters, passed, index))
                except BaseException as error:
                    if _is_interrupt(error) or isinstance(error, asyncio.CancelledError):
                        raise
                    if isinstance(error, TimeoutError) and timer.expired():
                        return Failure(f"overran its time limit of {limit:g} s", OVERRUN_HINT, "overran")
                    return self._failure(error)
                return self._entry(result, logged)

        return list(await asyncio.gather(*(one(index, logged) for index, logged in enumerate(several))))

    def _entry(self, result: Any, logged: Logged) -> Entry:
        if self.parameters.style == "verl" and isinstance(result, Mapping) and "score" in result:
            for name, value in result.items():
                if name != "score" and isinstance(value, bool | int | float):
                    logged.log_metric(str(name), value)
            result = result["score"]
        entry = logged.check(1) or self.read(result)
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
