"""Calling an environment: in a thread where it is not async, within a time limit, with errors that name it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from reinlm.environments.protocol import Action, Environment, Observation, StepResult, checked_observation, checked_step
from reinlm.errors import InputError, ReinlmError, RunError, error_line, file_of
from reinlm.records import Task

_Checked = TypeVar("_Checked")
_HINT = "correct the environment, or set rollout.on_environment_error=skip to leave such episodes out"


class EnvironmentFailed(Exception):  # noqa: N818 - an episode's error, which may be skipped
    """The error of an environment, in one line that names its class and the task.

    `error` is an InputError where it returned something that cannot be used, and a RunError where it raised or took too
    long.
    """

    def __init__(self, error: ReinlmError) -> None:
        super().__init__(error.message)
        self.error = error


class Calls:
    """The calls to one episode's environment; an async context manager that closes it.

    Each raises `EnvironmentFailed` for what the environment does wrong. `time_limit` is in seconds a call; None is no
    limit. A thread that hangs keeps running but does not keep the program from exiting. An async method that never
    awaits cannot be interrupted.
    """

    def __init__(self, environment: Environment, task: Task, time_limit: float | None) -> None:
        self.environment = environment
        self._where = f"environment {type(environment).__name__}, task {task.id}"
        self._limit = time_limit
        self._task = task

    async def reset(self) -> Observation:
        """Call `reset`: the first observation."""
        return await self._call("reset", checked_observation, self._task)

    async def step(self, action: Action) -> StepResult:
        """Call `step` with a turn of the model."""
        return await self._call("step", checked_step, action)

    def failed(self, what: str) -> EnvironmentFailed:
        """The error for an unusable return value."""
        return EnvironmentFailed(InputError(f"{self._where}: {what}", hint=_HINT))

    async def __aenter__(self) -> Calls:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Call `close` if the environment has it, even if the episode was cancelled.

        If the block raised an error, that one is raised rather than an error of `close`.
        """
        if not hasattr(self.environment, "close"):
            return
        closing = asyncio.ensure_future(self._call("close", lambda _nothing: None))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await asyncio.wait([closing])
            raise
        except EnvironmentFailed:
            if error is None:
                raise

    async def _call(self, method: str, check: Callable[[Any], _Checked], *args: Any) -> _Checked:
        function = getattr(self.environment, method)
        try:
            async with asyncio.timeout(self._limit) as limit:
                if inspect.iscoroutinefunction(function):
                    value = await function(*args)
                else:
                    value = await in_thread(function, *args)
                    value = await value if inspect.isawaitable(value) else value
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            if isinstance(error, TimeoutError) and limit.expired():
                text = f"{self._where}: {method} took longer than {self._limit:g} s"
                raise EnvironmentFailed(RunError(text, hint=f"raise environment_time_limit; {_HINT}")) from error
            raised = RunError(f"{self._where}: {method} raised {error_line(error, file_of(function))}", hint=_HINT)
            raise EnvironmentFailed(raised) from error
        try:
            return check(value)
        except (TypeError, ValueError) as error:
            raise self.failed(f"{method} returned {error}") from error


def _is_cancelled() -> bool:
    """Whether the task that runs is being cancelled; a CancelledError is otherwise one that the environment raised."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a new daemon thread, with the context variables of the caller.

    A hanging thread of `asyncio.to_thread` would keep the event loop from closing.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if not outcome.done():
            outcome.set_result((value, error))

    def call() -> None:
        found: tuple[Any, BaseException | None]
        try:
            found = context.run(function, *args), None
        except BaseException as error:  # noqa: BLE001 - raised in the coroutine
            found = None, error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, *found)

    threading.Thread(target=call, daemon=True, name=f"call of {getattr(function, '__qualname__', function)}").start()
    value, error = await outcome
    if isinstance(error, Exception):
        raise error
    if error is not None:  # SystemExit and similar end the thread, not the run
        raise RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__) from error
    return value
