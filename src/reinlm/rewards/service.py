"""The methods of a reward worker: load functions and call them. Runs in the worker process (`reinlm.sandbox.child`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reinlm.errors import InputError, error_line, file_of
from reinlm.rewards.functions import FunctionSource, invoke, load, parameters_of
from reinlm.rewards.values import Failure, TrainerState, read_result, write_entries

_functions: dict[int, Callable[..., Any]] = {}


def load_function(key: int, source: Mapping[str, Any]) -> list[Any]:
    """`["parameters", NAMES, REQUIRED, TAKES_ALL]`, or `["refused", MESSAGE, HINT]` where it cannot be had."""
    try:
        _functions[key] = load(FunctionSource(**source))
        found = parameters_of(_functions[key])
    except InputError as error:
        return ["refused", error.message, error.hint]
    return ["parameters", found.names, found.required, found.takes_all]


def call_function(key: int, arguments: dict[str, Any], state: list[Any] | None, count: int) -> Any:
    """The function's entries as `write_entries` has them; `state` is the `trainer_state` of a function that takes it."""
    if state is not None:
        arguments["trainer_state"] = TrainerState(*state)
    function = _functions[key]
    try:
        return write_entries(read_result(invoke(function, arguments), count))
    except BaseException as error:  # noqa: BLE001 - sys.exit() too is reported, and the worker goes on
        return write_entries(Failure(f"raised {error_line(error, file_of(function))}"))


METHODS = {"load": load_function, "call": call_function}
