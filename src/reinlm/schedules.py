"""What a rate is multiplied by as a run goes on. Pure functions of the step, so a resumed run needs no state of theirs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator

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
    """The name. Raises ValueError for one that is not registered."""
    if name not in SCHEDULES:
        raise ValueError(f"unknown schedule {name!r}; allowed: {', '.join(SCHEDULES)}")
    return name


Schedule = Annotated[str, AfterValidator(check_schedule)]
"""The name of a schedule, in a configuration."""


def scheduled(name: str, done: float, final_fraction: float = 0.0) -> float:
    """The factor once the share `done` of the run is over: 1 at 0; at 1 and beyond `final_fraction`, unless constant.

        final_fraction + (1 - final_fraction) · schedule(done)

    Raises ValueError for a schedule that is not registered.
    """
    shape = SCHEDULES[check_schedule(name)](min(max(done, 0.0), 1.0))
    return final_fraction + (1.0 - final_fraction) * shape


def interpolate(start: float, end: float | None, name: str, done: float) -> float:
    """From `start` to `end` as the schedule goes: end + (start - end) · schedule(done); `start` where there is no end."""
    return start if end is None else end + (start - end) * scheduled(name, done)
