"""Calls to an environment: where they run, and what one that fails is called."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from reinlm.environments import Action, Question, StepResult
from reinlm.environments.calls import Calls, EnvironmentFailed
from reinlm.environments.protocol import check_environment, checked_observation, checked_step, name_of
from reinlm.errors import InputError, RunError
from reinlm.records import Task

TASK = Task("maze.jsonl:3", "go")
ACTION = Action("7", np.array([9, 1], np.int32))


def step(environment: Any, time_limit: float | None = 5.0) -> StepResult:
    return asyncio.run(Calls(environment, TASK, time_limit).step(ACTION))


class Echo:
    def step(self, action: Action) -> tuple[Any, ...]:
        self.thread = threading.current_thread()
        return action.text, None, False, False, {}


class AsyncEcho(Echo):
    async def step(self, action: Action) -> tuple[Any, ...]:  # type: ignore[override]
        return super().step(action)


class Later(Echo):
    """A plain method that returns what is to be awaited."""

    def step(self, action: Action) -> Any:
        return AsyncEcho().step(action)


@pytest.mark.parametrize(("kind", "threaded"), [(Echo, True), (AsyncEcho, False)])
def test_a_plain_method_runs_in_a_thread_and_an_async_one_on_the_loop(kind: type[Echo], threaded: bool) -> None:
    environment = kind()
    assert step(environment) == StepResult("7")
    assert (environment.thread is not threading.main_thread()) == threaded
    assert environment.thread.daemon == threaded


def test_what_a_plain_method_returns_may_be_awaited() -> None:
    assert step(Later()) == StepResult("7")


def test_a_thread_sees_the_context_variables_of_its_caller() -> None:
    variable = contextvars.ContextVar("variable", default="none")

    class Reads:
        def step(self, action: Action) -> StepResult:
            return StepResult(variable.get())

    variable.set("mine")
    assert step(Reads()).observation == "mine"


def test_plain_environments_work_side_by_side() -> None:
    barrier = threading.Barrier(3, timeout=5)

    class Meets:
        def step(self, action: Action) -> StepResult:
            barrier.wait()  # passes only where three of them are here at the same time
            return StepResult("met")

    meets: Any = Meets

    async def main() -> list[StepResult]:
        return await asyncio.gather(*(Calls(meets(), TASK, 10).step(ACTION) for _ in range(3)))

    assert asyncio.run(main()) == [StepResult("met")] * 3


def test_a_thread_that_hangs_keeps_neither_the_loop_nor_the_program() -> None:
    code = """
import asyncio, time
from reinlm.environments.calls import Calls, EnvironmentFailed
from reinlm.records import Task
class Hangs:
    def reset(self, task):
        time.sleep(60)
try:
    asyncio.run(Calls(Hangs(), Task("a", ""), 0.1).reset())
except EnvironmentFailed as failed:
    print(failed.error.message)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "environment Hangs, task a: reset took longer than 0.1 s\n"


class Raises:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def step(self, action: Action) -> StepResult:
        raise self.error

    def close(self) -> None:
        raise OSError("cannot close")


def test_a_timeout_of_the_environments_own_is_an_error_like_any_other() -> None:
    with pytest.raises(EnvironmentFailed) as caught:
        step(Raises(TimeoutError("the server\n is slow")))
    assert isinstance(caught.value.error, RunError)
    line = Raises.step.__code__.co_firstlineno + 1
    assert caught.value.error.message == (
        f"environment Raises, task maze.jsonl:3: step raised TimeoutError: the server is slow ({__file__}:{line})"
    )
    assert isinstance(caught.value.__cause__, TimeoutError)


def test_a_cancellation_that_the_environment_raises_is_its_error_and_one_from_outside_is_not() -> None:
    with pytest.raises(EnvironmentFailed, match="step raised CancelledError") as caught:
        step(Raises(asyncio.CancelledError()))
    assert isinstance(caught.value.error, RunError)

    class Waits:
        async def step(self, action: Action) -> StepResult:
            await asyncio.sleep(10)
            return StepResult("late")

    async def main() -> None:
        waits: Any = Waits()
        running = asyncio.ensure_future(Calls(waits, TASK, 5.0).step(ACTION))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())


def test_an_error_while_closing_is_raised_unless_there_is_one_before() -> None:
    async def main(error: Exception | None) -> None:
        environment: Any = Raises(error or ValueError())
        async with Calls(environment, TASK, 5.0) as calls:
            if error is not None:
                await calls.step(ACTION)

    with pytest.raises(EnvironmentFailed, match="close raised OSError: cannot close"):
        asyncio.run(main(None))
    with pytest.raises(EnvironmentFailed, match="step raised KeyError: 'first'"):
        asyncio.run(main(KeyError("first")))


def test_what_is_no_step_is_an_input_error_that_says_what_is_allowed() -> None:
    class Wrong:
        def step(self, action: Action) -> Any:
            return "text"

    with pytest.raises(EnvironmentFailed) as caught:
        step(Wrong())
    assert isinstance(caught.value.error, InputError)
    assert caught.value.error.message == (
        "environment Wrong, task maze.jsonl:3: step returned a str, not "
        "(observation, reward, terminated, truncated, info)"
    )


@pytest.mark.parametrize("name", [1, None, "", "two words", "a\nb"])
def test_a_reward_whose_name_could_not_be_logged_is_refused(name: Any) -> None:
    class Named:
        def reset(self, task: Task) -> None: ...

        def step(self, action: Action) -> StepResult:
            return StepResult("+", reward={name: 1.0})

    with pytest.raises(EnvironmentFailed) as caught:
        step(Named())
    assert isinstance(caught.value.error, InputError)
    assert f"step returned a reward named {name!r}; a reward's name is a text" in caught.value.error.message


def test_an_environment_whose_name_could_not_be_logged_is_refused() -> None:
    class Named:
        name = "two words"

        def reset(self, task: Task) -> None: ...

        def step(self, action: Action) -> StepResult:
            return StepResult(reward=1.0, terminated=True)

    with pytest.raises(TypeError, match="a reward named 'two words'"):
        check_environment(Named())


def test_numbers_of_numpy_are_numbers_and_lists_of_messages_are_messages() -> None:
    message = {"role": "tool", "content": "42"}
    result = checked_step(([message], {"a": np.float32(0.5), "b": True}, np.bool_(False), False, {}))
    assert result == StepResult((message,), {"a": 0.5, "b": 1.0}, False, False, {})
    assert type(result.terminated) is bool
    ids = checked_observation(np.array([3, 4], np.int64))
    assert isinstance(ids, np.ndarray)
    assert ids.dtype == np.int32


@pytest.mark.parametrize("value", [3, [], ["a"], [{"content": "a"}], np.zeros(2), np.zeros((1, 2), int), b"a"])
def test_what_is_no_observation_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="an observation of"):
        checked_observation(value)


@pytest.mark.parametrize("token", [-1, 2**31, 2**32 + 3])
def test_token_ids_that_are_negative_or_too_large_are_refused_and_not_wrapped(token: int) -> None:
    class Writes:
        def step(self, action: Action) -> StepResult:
            return StepResult(np.array([3, token]))

    with pytest.raises(EnvironmentFailed, match=f"step returned an observation with the token id {token};"):
        step(Writes())


def test_a_question_ends_with_its_answer_and_earns_nothing_of_itself() -> None:
    question = Question()
    assert asyncio.run(question.reset(TASK)) is None
    assert asyncio.run(question.step(ACTION)) == StepResult(None, None, True, False, {"reason": "stop"})
    echo: Any = Echo()
    assert (name_of(question), name_of(echo)) == ("question", "Echo")
