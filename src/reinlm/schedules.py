"""Schedules: factors as pure functions of the progress of a run, so checkpoints need no state of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from reinlm.errors import InputError, error_line
from reinlm.importable import find, is_place, place_of

SCHEDULES: dict[str, Callable[[float], float]] = {}
"""By name: the share of the run that is over, in [0, 1] -> a factor that goes from 1 to 0."""


def schedule(name: str) -> Callable[[Callable[[float], float]], Callable[[float], float]]:
    """Register a function of the share of the run that is over. Raises ValueError for a name in use."""

    def register(function: Callable[[float], float]) -> Callable[[float], float]:
        if name in SCHEDULES and SCHEDULES[name].__qualname__ != function.__qualname__:
            raise ValueError(f"schedule {name!r} is registered twice")
        SCHEDULES[name] = function
        return function

    return register


@schedule("constant")
def constant(done: float) -> float:
    """1."""
    return 1.0


@schedule("linear")
def linear(done: float) -> float:
    """1 - done."""
    return 1.0 - done


@schedule("cosine")
def cosine(done: float) -> float:
    """½ (1 + cos π done)."""
    return 0.5 * (1.0 + math.cos(math.pi * done))


def check_schedule(name: str) -> str:
    """The name. Raises ValueError for one that is neither registered nor a place."""
    if is_place(name):
        return name
    if name not in SCHEDULES:
        raise ValueError(f"unknown schedule {name!r}; allowed: {', '.join(SCHEDULES)}")
    return name


def _usable(name: str) -> str:
    """The name of a schedule that gives numbers. Raises ValueError for another one."""
    for done in (0.0, 0.5, 1.0):
        _factor(check_schedule(name), done)
    return name


def _factor(name: str, done: float) -> float:
    try:
        factor = float((find(name, "schedule") if is_place(name) else SCHEDULES[name])(done))
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"schedule {name!r} fails at {done:g}: {error_line(error)}") from error
    if not math.isfinite(factor):
        raise InputError(
            f"schedule {name!r} gives {factor} at {done:g}", hint="return a finite number, 1 at 0 and 0 at 1"
        )
    return factor


def _named(given: Any) -> Any:
    """A registered name, or the place of a function; what is no function as it is."""
    if not callable(given):
        return given
    name = next((name for name, function in SCHEDULES.items() if function is given), None) or place_of(given)
    if name is None:
        raise InputError(
            f"schedule {getattr(given, '__name__', given)!r} is in no file, where config.yaml could name it",
            hint='define it in a file, or register it: @reinlm.schedules.schedule("NAME")',
        )
    return name


Schedule = Annotated[str, BeforeValidator(_named), AfterValidator(_usable)]
"""In a configuration the name of a schedule, or `file.py:FUNCTION`; from Python also the function."""


def scheduled(name: str, done: float, final_fraction: float = 0.0) -> float:
    """The factor once the share `done` of the run is over: 1 at 0; at 1 and beyond `final_fraction`, unless constant.

        final_fraction + (1 - final_fraction) · schedule(done)

    Raises ValueError for a schedule that is not registered.
    """
    shape = _factor(check_schedule(name), min(max(done, 0.0), 1.0))
    return final_fraction + (1.0 - final_fraction) * shape


def interpolate(start: float, end: float | None, name: str, done: float) -> float:
    """From `start` to `end` as the schedule goes: end + (start - end) · schedule(done); `start` where there is no end."""
    return start if end is None else end + (start - end) * scheduled(name, done)
