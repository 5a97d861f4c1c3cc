"""Types that reward functions receive and return, and the parsing of their results."""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Literal, get_args

from reinlm.rewards.steps import StepRewards


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
    evaluating: bool = False
    """Whether the answers are those of an evaluation."""


Cause = Literal["value", "raised", "passing", "overran", "ended"]
"""Why a call has no result: a wrong value; an error, which may pass as that of a busy service does; time; its process ended."""


@dataclass(frozen=True)
class Failure:
    """What went wrong with one sample or one call, as the rest of a sentence: `returned nan`."""

    text: str
    hint: str | None = None
    cause: Cause = "value"


Entry = float | StepRewards | Failure | None
"""The result of a reward function for one sample. None: the reward does not apply to it."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def read_result(result: Any, count: int, read: Callable[[Any], Entry] | None = None) -> list[Entry] | Failure:
    """The entries of what a reward function returned for `count` samples; `read` reads each, as `read_entry` does.

    Numbers may be Python, NumPy or torch scalars, or a list-like of them. A wrong kind or count fails the whole
    call; an entry that is no finite number fails its sample alone.
    """
    each = "pair" if read is read_judgement else "answer"
    wanted = f"a list of {count} value{'s' if count != 1 else ''}, one for each {each}"
    if (remedy := _no_list(result)) is not None:
        return Failure(f"returned {_SHORT.repr(result)} instead of {wanted}", remedy)
    try:
        values = list(result)
    except TypeError:  # an array without dimensions has both methods, and raises in them
        hint = "return a list, one number for each answer, not one number for all"
        return Failure(f"returned {_SHORT.repr(result)} instead of {wanted}", hint)
    if (shape := getattr(result, "shape", ())) and len(shape) > 1:
        hint = "return one number for each answer: `.reshape(-1)` of an array of shape (answers, 1)"
        return Failure(f"returned an array of shape {tuple(shape)} instead of {wanted}", hint)
    if len(values) != count:
        hint = "return one number for each entry of `completions`, or None where the reward does not apply"
        return Failure(f"returned {len(values)} values for {count} samples", hint)
    return [(read or read_entry)(value) for value in values]


def _no_list(result: Any) -> str | None:
    """What to write instead of a result that is no list; None for a list, a tuple or an array."""
    if result is None:
        return "end the function with `return`: one number for each answer"
    if isinstance(result, Mapping):
        return "return a list of numbers; `log_metric(name, value)` logs further ones"
    if isinstance(result, str | bytes):
        return "return numbers: float(text) makes one of text"
    if inspect.isasyncgen(result):
        return "the function is an async generator: collect the numbers in a list and return it instead of `yield`"
    if inspect.isgenerator(result):
        return "the function is a generator: return a list instead of `yield`, as list(…) makes one"
    if isinstance(result, Set):
        return "a set has no order: return a list"
    if isinstance(result, bool | int | float) or not hasattr(result, "__iter__"):
        return "return a list, one number for each answer, not one number for all"
    if not hasattr(result, "__len__"):
        return "write list(…) around it"
    return None


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
        return {"failure": entry.text, "hint": entry.hint, "cause": entry.cause}
    if isinstance(entry, StepRewards):
        steps, characters = map(list, entry.steps), map(list, entry.characters)
        return {"steps": [*steps], "characters": [*characters], "outcome": entry.outcome}
    return entry


def _read(value: Any) -> Entry:
    match value:
        case None:
            return None
        case float() if math.isfinite(value):
            return value
        case {"failure": str(text), "hint": str() | None as hint, "cause": cause} if len(value) == 3:
            if cause in get_args(Cause):
                return Failure(text, hint, cause)
        case {"steps": list(steps), "characters": list(characters), "outcome": float() | None as outcome}:
            whole = len(value) == 3 and (outcome is None or math.isfinite(outcome))
            if whole and all(map(_is_step, [*steps, *characters])):
                return StepRewards(tuple(map(_pair, steps)), outcome, tuple(map(_pair, characters)))
    raise ValueError(f"{_SHORT.repr(value)} instead of an entry")


def _is_step(step: Any) -> bool:
    match step:
        case [token, float(reward)]:
            return type(token) is int and math.isfinite(reward)
    return False


def _pair(step: list[Any]) -> tuple[int, float]:
    place, value = step
    return place, value


def read_entry(value: Any) -> Entry:
    """What a function gave for one answer; an entry that is no finite number fails."""
    if value is None:
        return None
    if not isinstance(value, StepRewards):
        number = _finite_or_none(value)
        return number if number is not None else Failure(f"returned {_SHORT.repr(value)}", _no_number(value))
    steps, characters = _read_steps(value.steps, "token"), _read_steps(value.characters, "character")
    for found in (steps, characters):
        if isinstance(found, Failure):
            return found
    outcome = None if value.outcome is None else _finite_or_none(value.outcome)
    if value.outcome is not None and outcome is None:
        return Failure(f"returned the outcome {_SHORT.repr(value.outcome)} beside its steps")
    assert not isinstance(steps, Failure)
    assert not isinstance(characters, Failure)
    return StepRewards(steps, outcome, characters)


JUDGEMENTS = {"first": 0.0, "second": 1.0, "tie": 0.5}
"""What a judge says of a pair, and its number: the chance that the second answer is the better one."""

ALLOWED = '0 or "first", 1 or "second" (the better answer), 0.5 or "tie", and None or -1 for no judgement'
"""What a judge may return for a pair."""


def read_judgement(value: Any) -> Entry:
    """What a judge gave for one pair: 0, 0.5 or 1; None for no judgement. True and False do not say which, and fail."""
    if value is None:
        return None
    if isinstance(value, str) and value in JUDGEMENTS:
        return JUDGEMENTS[value]
    plain = value.item() if getattr(value, "shape", None) == () else value
    number = None if isinstance(plain, bool) else _finite_or_none(plain)
    if number == -1.0:
        return None
    if number not in JUDGEMENTS.values():
        return Failure(f"returned {_SHORT.repr(value)}", f"allowed: {ALLOWED}")
    return number


def _read_steps(steps: Any, unit: str) -> tuple[tuple[int, float], ...] | Failure:
    read = []
    for step in steps:
        try:
            place, reward = step
        except (TypeError, ValueError):
            return Failure(f"returned the step {_SHORT.repr(step)}", f"a step is a pair ({unit}, value)")
        number = _finite_or_none(reward)
        if number is None:
            return Failure(f"returned the step reward {_SHORT.repr(reward)} on {unit} {_SHORT.repr(place)}")
        if isinstance(place, bool) or not hasattr(place, "__index__"):
            return Failure(f"put a step reward on {unit} {_SHORT.repr(place)}, which is no index")
        read.append((place.__index__(), number))
    return tuple(read)


def _no_number(value: Any) -> str | None:
    """What to write instead of an entry that is no finite number."""
    if inspect.isawaitable(value):
        return "await it: make the function `async def` and write `await asyncio.gather(*…)`"
    if isinstance(value, str | bytes):
        return "return numbers: float(text) makes one of text"
    if isinstance(value, list | tuple):
        return "return one number for each answer; StepRewards gives several parts of an answer rewards"
    if isinstance(value, Mapping):
        return "return the number alone; `log_metric(name, value)` logs further ones"
    if isinstance(value, float):
        return "return a finite number, or None where the reward does not apply"
    return None


def _finite_or_none(value: Any) -> float | None:
    """A finite float, or None for what is no number or not finite. Text is no number, even where it reads like one."""
    if isinstance(value, str | bytes):
        return None
    try:
        number = float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return number if math.isfinite(number) else None
