"""Types that reward functions receive and return, and the parsing of their results."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TrainerState:
    """How far training is: what a reward function receives as `trainer_state`.

    Example:
        TrainerState(global_step=12, max_steps=500, epoch=0.4)
    """

    global_step: int = 0
    """Updates made so far."""
    max_steps: int = 0
    """Updates that the run will make; 0 where no run makes the call."""
    epoch: float = 0.0
    """Passes over the prompts so far."""


@dataclass(frozen=True)
class StepRewards:
    """Rewards on single tokens of one answer: an entry of the list that a reward function returns.

    Example: two steps that end on the 4th and 12th token that the policy chose, and a reward of the whole answer:
        StepRewards([(3, 0.5), (11, 1.0)], outcome=1.0)
    """

    steps: Sequence[tuple[int, float]]
    """(index among the chosen tokens of the answer, from 0; value)."""
    outcome: float | None = None
    """A reward of the whole answer beside the steps, or None for none."""


@dataclass(frozen=True)
class Failure:
    """What went wrong with one sample or one call, as the rest of a sentence: `returned nan`."""

    text: str
    hint: str | None = None


Entry = float | StepRewards | Failure | None
"""The result of a reward function for one sample. None: the reward does not apply to it."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def read_result(result: Any, count: int) -> list[Entry] | Failure:
    """The entries of what a reward function returned for `count` samples.

    Numbers may be Python, NumPy or torch scalars, or a list-like of them. A wrong kind or count fails the whole
    call; an entry that is no finite number fails its sample alone.
    """
    if isinstance(result, str | bytes | Mapping) or not hasattr(result, "__iter__") or not hasattr(result, "__len__"):
        return Failure(f"returned {_SHORT.repr(result)} instead of a list of {count} values")
    try:
        values = list(result)
    except TypeError:  # an array without dimensions has both methods, and raises in them
        return Failure(f"returned {_SHORT.repr(result)} instead of a list of {count} values")
    if len(values) != count:
        return Failure(f"returned {len(values)} values for {count} samples")
    return [_entry(value) for value in values]


def write_entries(entries: list[Entry] | Failure) -> Any:
    """The entries as JSON, which `read_entries` reads in another process."""
    return _write(entries) if isinstance(entries, Failure) else [_write(entry) for entry in entries]


def read_entries(value: Any, count: int) -> list[Entry] | Failure:
    """The entries that `write_entries` wrote for `count` samples; ValueError shows anything else."""
    if isinstance(value, dict):
        entry = _read(value)
        if isinstance(entry, Failure):
            return entry
    elif isinstance(value, list) and len(value) == count:
        return [_read(item) for item in value]
    raise ValueError(f"{_SHORT.repr(value)} instead of {count} entries")


def _write(entry: Entry) -> Any:
    if isinstance(entry, Failure):
        return {"failure": entry.text, "hint": entry.hint}
    if isinstance(entry, StepRewards):
        return {"steps": [list(step) for step in entry.steps], "outcome": entry.outcome}
    return entry


def _read(value: Any) -> Entry:
    match value:
        case None:
            return None
        case float() if math.isfinite(value):
            return value
        case {"failure": str(text), "hint": str() | None as hint} if len(value) == 2:
            return Failure(text, hint)
        case {"steps": list(steps), "outcome": float() | None as outcome} if len(value) == 2:
            if all(_is_step(step) for step in steps) and (outcome is None or math.isfinite(outcome)):
                return StepRewards(tuple((token, reward) for token, reward in steps), outcome)
    raise ValueError(f"{_SHORT.repr(value)} instead of an entry")


def _is_step(step: Any) -> bool:
    match step:
        case [token, float(reward)]:
            return type(token) is int and math.isfinite(reward)
    return False


def _entry(value: Any) -> Entry:
    if value is None:
        return None
    if not isinstance(value, StepRewards):
        number = _finite_or_none(value)
        return number if number is not None else Failure(f"returned {_SHORT.repr(value)}")
    steps = []
    for step in value.steps:
        token, reward = step
        number = _finite_or_none(reward)
        if number is None:
            return Failure(f"returned the step reward {_SHORT.repr(reward)} on token {_SHORT.repr(token)}")
        if isinstance(token, bool) or not hasattr(token, "__index__"):
            return Failure(f"put a step reward on token {_SHORT.repr(token)}, which is no index")
        steps.append((token.__index__(), number))
    outcome = None if value.outcome is None else _finite_or_none(value.outcome)
    if value.outcome is not None and outcome is None:
        return Failure(f"returned the outcome {_SHORT.repr(value.outcome)} beside its steps")
    return StepRewards(tuple(steps), outcome)


def _finite_or_none(value: Any) -> float | None:
    """A finite float, or None for what is no number or not finite. Text is no number, even where it reads like one."""
    if isinstance(value, str | bytes):
        return None
    try:
        number = float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return number if math.isfinite(number) else None
