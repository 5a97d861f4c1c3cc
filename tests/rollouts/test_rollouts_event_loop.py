"""The event loop hands over what a coroutine returns, and looks at nothing of it."""

from __future__ import annotations

import asyncio
from typing import Any

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


def test_a_result_comes_back_where_a_loop_runs_already() -> None:
    async def notebook() -> Any:
        with EventLoop() as loop:
            return [loop.run(result()), loop.run(result())]

    assert [type(one) for one in asyncio.run(notebook())] == [Result, Result]
