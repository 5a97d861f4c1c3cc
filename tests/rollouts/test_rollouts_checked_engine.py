"""What an engine of a user's own returns is checked against the request; what is wrong is named with the engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from reinlm.errors import InputError, RunError
from reinlm.rollouts.checked_engine import CheckedEngine
from reinlm.rollouts.protocol import Capabilities, Completion, Request, Sampling

REQUEST = Request("1/0/0/a/0", (5, 6), Sampling(max_new_tokens=3))
NONE = np.zeros(0, np.int32)
GOOD = Completion(
    REQUEST.id,
    np.array([3, 1]),
    {"rollout_logprobs": np.array([-0.5, -0.25]), "version": np.array([4, 4])},
    "stop",
)


class Engine:
    capabilities: Any = Capabilities()

    def __init__(self, found: Any = GOOD) -> None:
        self.found = found
        self.calls: list[Any] = []

    async def generate(self, request: Request) -> Any:
        return self.found(request) if callable(self.found) else self.found

    def abort(self, ids: Any) -> None:
        self.calls.append(ids)

    def update(self, weights: Any, version: int) -> None:
        self.calls.append(version)

    def sleep(self) -> None:
        raise InputError("not yet")

    def wake(self) -> None:
        raise OSError("no server")


def generate(found: Any) -> Completion:
    engine: Any = Engine(found)
    return asyncio.run(CheckedEngine(engine, "mine", 10).generate(REQUEST))


def columns(**changes: Any) -> dict[str, Any]:
    return {**GOOD.columns, **changes}


@pytest.mark.parametrize(
    ("found", "what"),
    [
        (None, "a NoneType, not a Completion"),
        (replace(GOOD, id="1/0/0/b/0"), "the completion of '1/0/0/b/0'"),
        (replace(GOOD, reason="done"), "the reason 'done', not one of stop, length, context"),  # type: ignore[arg-type]
        (Completion(REQUEST.id, NONE, {"rollout_logprobs": NONE, "version": NONE}, "stop"), "0 tokens, not 1 to 3"),
        (Completion(REQUEST.id, np.arange(4), {}, "stop"), "4 tokens, not 1 to 3"),
        (replace(GOOD, token_ids=np.array([3, 10])), "token ids outside the vocabulary of 10"),
        (replace(GOOD, token_ids=np.array([-1, 3])), "token ids outside the vocabulary of 10"),
        (replace(GOOD, columns={"version": np.array([4, 4])}), "no column 'rollout_logprobs'"),
        (replace(GOOD, columns={"rollout_logprobs": GOOD.columns["rollout_logprobs"]}), "no column 'version'"),
        (
            replace(GOOD, columns=columns(rollout_logprobs=np.array([-0.5, np.nan]))),
            "values in the column 'rollout_logprobs' that are not finite",
        ),
    ],
)
def test_what_is_no_completion_of_the_request_is_named(found: Any, what: str) -> None:
    assert generate(GOOD) is GOOD
    with pytest.raises(InputError, match=f"^engine mine: generate returned {what} for request '1/0/0/a/0'"):
        generate(found)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"columns": columns(version=[4])}, "ValueError: the column 'version' has shape (1,) for 2 tokens"),
        ({"columns": columns(version=[4.5, 4.0])}, "TypeError: version has values of type float64, not int32"),
        ({"columns": columns(mine=[1, 2])}, "ValueError: no per-token column 'mine' is declared; declared are"),
        ({"token_ids": np.zeros((2, 1), int)}, "ValueError: token_ids has shape (2, 1), not [n]"),
        ({"token_ids": np.array([0.5, 1.0])}, "TypeError: token_ids has values of type float64, not int32"),
    ],
)
def test_a_completion_that_contradicts_itself_is_named_with_the_line_that_makes_it(
    changes: dict[str, Any], what: str
) -> None:
    with pytest.raises(RunError) as caught:
        generate(lambda request: replace(GOOD, **changes))
    assert str(caught.value).startswith(f"engine mine: generate raised {what}")
    assert f"({__file__}:" in str(caught.value)


def test_other_methods_are_passed_on_and_their_errors_named() -> None:
    inner: Any = Engine()
    engine = CheckedEngine(inner, "mine", 10)
    engine.update(None, 3)
    engine.abort(["a"])
    assert inner.calls == [3, ["a"]]
    assert engine.capabilities is inner.capabilities
    with pytest.raises(InputError, match=r"^not yet$"):
        engine.sleep()
    with pytest.raises(RunError, match=r"^engine mine: wake raised OSError: no server \(.*checked_engine.py:\d+\)$"):
        engine.wake()


def test_what_is_no_engine_is_refused_when_it_is_built() -> None:
    class Columns(Engine):
        capabilities = ("rollout_logprobs",)

    for wrong, what in ((object(), "object has no method 'generate'"), (Columns(), "capabilities is of type tuple")):
        with pytest.raises(InputError, match=f"^engine mine: {what}"):
            CheckedEngine(wrong, "mine", 10)  # type: ignore[arg-type]
