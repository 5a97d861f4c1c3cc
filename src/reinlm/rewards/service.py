"""The methods of a reward worker: load functions and call them. Runs in the worker process (`reinlm.sandbox.child`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from reinlm.errors import InputError
from reinlm.rewards.functions import FunctionSource, load, ready
from reinlm.rewards.running import Function
from reinlm.rewards.states import has_state
from reinlm.rewards.values import TrainerState, write_entries

_functions: dict[int, Function] = {}


def load_function(key: int, source: Mapping[str, Any], concurrency: int) -> list[Any]:
    """`["parameters", PARAMETERS]`, `["stays", WHY]` for the main process, or `["refused", MESSAGE, HINT]`: it cannot be had."""
    try:
        given = FunctionSource(**source)
        _functions[key] = ready(load(given), concurrency, judges=given.judges)
        if has_state(_functions[key].call):
            return ["stays", "its state is in the checkpoints"]
    except InputError as error:
        return ["refused", error.message, error.hint]
    return ["parameters", asdict(_functions[key].parameters)]


def call_function(
    key: int, arguments: dict[str, Any], state: list[Any] | None, count: int, limit: float | None
) -> dict[str, Any]:
    """The function's entries as `write_entries` has them, and what it logged.

    `state` is the `trainer_state` of a function that takes it.
    """
    if state is not None:
        arguments["trainer_state"] = TrainerState(*state)
    entries, logged = _functions[key].score(arguments, count, limit)
    return {"entries": write_entries(entries), "metrics": logged.metrics, "extra": logged.extra}


METHODS = {"load": load_function, "call": call_function}
