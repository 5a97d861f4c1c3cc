"""The event loop hands over what a coroutine returns, and looks at nothing of it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from reinlm.rollouts.event_loop import EventLoop


class Result:
    """Counts how often its text is made."""

    texts = 0

    def __repr__(self) -> str:
        Result.texts += 1
        return "a result of many arrays"


async def result() -> Result:
    return Result()


def test_no_text_of_a_result_is_made() -> None:
    """`asyncio.Runner` makes that of its task, and a task's text holds its result: of a batch of answers every array."""
    with EventLoop() as loop:
        assert isinstance(loop.run(result()), Result)
    assert Result.texts == 0


def test_another_thread_ends_what_runs_and_all_that_would_run_next() -> None:
    begun, ended = threading.Event(), []

    async def long() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("in order")

    with EventLoop() as loop:

        def cancel() -> None:
            begun.wait(30)
            loop.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(asyncio.CancelledError):
            loop.run(long())
        thread.join()
        assert ended == ["in order"]
        with pytest.raises(asyncio.CancelledError):
            loop.run(result())


def test_a_result_comes_back_where_a_loop_runs_already() -> None:
    async def notebook() -> Any:
        with EventLoop() as loop:
            return [loop.run(result()), loop.run(result())]

    assert [type(one) for one in asyncio.run(notebook())] == [Result, Result]
