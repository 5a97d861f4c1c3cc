"""Checks around a user's engine: wrong results and exceptions become errors that name the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, get_args

import numpy as np

from reinlm.errors import InputError, ReinlmError, RunError, error_line, file_of
from reinlm.rollouts.protocol import Capabilities, Completion, Engine, Reason, Request

NEEDED = "rollout_logprobs"
"""The column that training needs."""
METHODS = ("generate", "abort", "update", "sleep", "wake")


class CheckedEngine:
    """Calls an engine and checks what comes back; implements `reinlm.rollouts.protocol.Engine`.

    Every method raises what the engine raises where that is an error of reinlm's own, and otherwise a RunError that names
    the engine, its method and the line of its file. `generate` raises InputError for what is no completion of the request.

    Args:
        name: by which a recipe knows the engine.
        vocabulary: token ids are below it.

    Raises:
        InputError: a method is missing, or `capabilities` is no `Capabilities`.
    """

    def __init__(self, engine: Engine, name: str, vocabulary: int) -> None:
        self._engine = engine
        self._name = name
        self._vocabulary = vocabulary
        for method in METHODS:
            if not callable(getattr(engine, method, None)):
                raise self._wrong(f"{type(engine).__name__} has no method {method!r}")
        self._check_capabilities()

    @property
    def capabilities(self) -> Capabilities:
        """Those of the engine."""
        return self._engine.capabilities

    async def generate(self, request: Request) -> Completion:
        """The engine's completion of the request, checked."""
        try:
            found = await self._engine.generate(request)
        except Exception as error:
            raise self._raised("generate", error) from error
        wrong = self._what_is_wrong(found, request)
        if wrong is not None:
            raise self._wrong(f"generate returned {wrong} for request {request.id!r}")
        return found

    def abort(self, ids: Iterable[str]) -> None:
        self._call("abort", ids)

    def update(self, weights: Any, version: int) -> None:
        self._call("update", weights, version)

    def sleep(self) -> None:
        self._call("sleep")

    def wake(self) -> None:
        self._call("wake")

    def _call(self, method: str, *arguments: Any) -> None:
        try:
            getattr(self._engine, method)(*arguments)
        except Exception as error:
            raise self._raised(method, error) from error

    def _check_capabilities(self) -> None:
        try:
            found = self._engine.capabilities
        except Exception as error:
            raise self._raised("capabilities", error) from error
        if not isinstance(found, Capabilities):
            raise self._wrong(f"capabilities is of type {type(found).__name__}, not Capabilities")

    def _what_is_wrong(self, found: Any, request: Request) -> str | None:
        """What keeps it from being a completion of the request, as the object of a sentence; None where nothing does."""
        if not isinstance(found, Completion):
            return f"a {type(found).__name__}, not a Completion"
        ids, columns = found.token_ids, found.columns
        if found.id != request.id:
            return f"the completion of {found.id!r}"
        if found.reason not in get_args(Reason):
            return f"the reason {found.reason!r}, not one of {', '.join(get_args(Reason))}"
        if not 1 <= len(ids) <= request.sampling.max_new_tokens:
            return f"{len(ids)} tokens, not 1 to {request.sampling.max_new_tokens}"
        if ids.min() < 0 or ids.max() >= self._vocabulary:
            return f"token ids outside the vocabulary of {self._vocabulary}"
        if absent := [name for name in (NEEDED, *self.capabilities.columns) if name not in columns]:
            return f"no column {absent[0]!r}"
        if not np.isfinite(columns[NEEDED]).all():
            return f"values in the column {NEEDED!r} that are not finite"
        return None

    def _raised(self, method: str, error: Exception) -> ReinlmError:
        if isinstance(error, ReinlmError):
            return error
        function: Callable[..., Any] | None = getattr(type(self._engine), method, None)
        function = function.fget if isinstance(function, property) else function
        return RunError(f"engine {self._name}: {method} raised {error_line(error, file_of(function))}")

    def _wrong(self, what: str) -> InputError:
        return InputError(f"engine {self._name}: {what}", hint="reinlm.rollouts.protocol says what an engine is")
