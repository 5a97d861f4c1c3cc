"""What a reward function takes: the answers of a call as lists, or one answer a call; and how it is called with them."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from reinlm.errors import InputError, nearest
from reinlm.rewards.states import lost_attribute

ALWAYS = ("prompts", "completions", "completion_ids", "trainer_state")
"""Arguments that every reward function may take, besides the columns of the data."""

EXTRA = ("rows", "token_ids", "log_metric", "log_extra")
"""Further arguments that it may take by name; a function with `**columns` is given those that it names alone."""

LOGGERS = ("log_metric", "log_extra")
"""Functions that a call is given, named as in TRL: a number, and a column with an entry for each answer."""

ONE = {"prompt": "prompts", "completion": "completions", "completion_ids": "completion_ids", "row": "rows"}
"""Of a function that scores one answer a call: its argument, and the list that this is an entry of."""

VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
"""Arguments of verl's `compute_score`, which scores one answer a call."""

_GOLD = ("ground_truth", "reward_model", "answer", "solution")
"""Columns that `ground_truth` is taken from: the first that the data have; of `reward_model`, its key `ground_truth`."""

Style = Literal["lists", "one", "verl"]
"""How a function takes answers: all of a call as `completions`, one as `completion`, or one as `solution_str`."""

_COMPLETIONS = frozenset({"response", "responses", "answers", "generations", "outputs", "texts", "completion_texts"})
"""What users call `completions`."""


@dataclass(frozen=True)
class Parameters:
    """What a function takes, from its signature."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    takes_all: bool
    """It has `**kwargs`."""
    style: Style = "lists"
    asynchronous: bool = False
    """It is `async def`."""
    changes: str | None = None
    """An attribute of an object that its calls change, and that no checkpoint holds."""

    def chosen(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Which lists it is passed, by name; an `InputError` for an argument that is no column and is required."""
        own = {"lists": {name: name for name in ALWAYS}, "one": {**ONE, "trainer_state": "trainer_state"}, "verl": {}}
        offered = {**own[self.style], **{name: name for name in EXTRA if name in self.names}}
        offered |= {name: name for name in columns if name not in offered and name not in ALWAYS}
        if self.style == "verl":
            offered["solution_str"] = "completions"
            gold = next((name for name in _GOLD if name in columns), None)
            if gold is None:
                raise InputError(
                    "it needs the argument 'ground_truth', which is no column of the data",
                    hint=f"columns: {', '.join(columns) or 'none'}; verl's functions take it from {', '.join(_GOLD)}",
                )
            offered["ground_truth"] = gold
        optional = ("data_source", "extra_info") if self.style == "verl" else ()
        for name in self.required:
            if self.style == "one" and name in ONE.values() and name not in offered:
                raise InputError(
                    f"'completion' is one answer a call, and {name!r} beside it the list of all answers' values",
                    hint=f"write completions beside {name} to score lists, or "
                    f"{next(one for one, several in ONE.items() if several == name)} beside completion",
                )
            if name not in offered and name not in optional:
                raise _unknown_argument(name, tuple(offered), columns)
        names = offered if self.takes_all else [name for name in offered if name in self.names]
        return tuple(dict.fromkeys(offered[name] for name in names))


def parameters_of(function: Callable[..., Any]) -> Parameters:
    """The signature of `function`; one that has none to show is passed everything."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return Parameters((), (), takes_all=True)
    if any(p.kind is p.POSITIONAL_ONLY and p.default is p.empty for p in found):
        raise InputError(
            "it has positional-only arguments",
            hint="reward functions are called by keyword: remove the '/' from its signature",
        )
    named = [p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = tuple(p.name for p in named)
    return Parameters(
        names=names,
        required=tuple(p.name for p in named if p.default is p.empty),
        takes_all=any(p.kind is p.VAR_KEYWORD for p in found),
        style=_style(names),
        asynchronous=inspect.iscoroutinefunction(function)
        or inspect.iscoroutinefunction(getattr(function, "__call__", None)),  # noqa: B004
        changes=lost_attribute(function),
    )


def for_one(parameters: Parameters, arguments: Mapping[str, Any], index: int) -> dict[str, Any]:
    """The arguments of a function that scores one answer, out of those of all answers of a call."""
    one = {
        name: value if name in LOGGERS or name == "trainer_state" else value[index] for name, value in arguments.items()
    }
    if parameters.style == "one":
        for name, several in ONE.items():
            if several in one:
                one[name] = one.pop(several)
    if parameters.style == "verl":
        one = _as_verl(one)
    return one if parameters.takes_all else {name: one[name] for name in parameters.names if name in one}


def _as_verl(one: dict[str, Any]) -> dict[str, Any]:
    from reinlm.rewards.builtin import answer_text

    if "ground_truth" not in one:
        gold = next(one[name] for name in _GOLD if name in one)
        one["ground_truth"] = gold.get("ground_truth") if isinstance(gold, Mapping) else gold
    one["solution_str"] = answer_text(one.pop("completions"))
    return {"data_source": "", "extra_info": {}, **one}


def _style(names: Sequence[str]) -> Style:
    if "solution_str" in names and "completions" not in names:
        return "verl"
    return "one" if "completion" in names and "completions" not in names else "lists"


def _unknown_argument(name: str, offered: Sequence[str], columns: Sequence[str]) -> InputError:
    near = "completions" if name in _COMPLETIONS else nearest(name, offered)
    if near in (*ALWAYS, *ONE, *EXTRA) and name not in _COMPLETIONS and not _misspelt(name, near):
        near = nearest(name, columns)
    did = f"did you mean {near!r}? " if near else ""
    if name == "environments":
        did = "an environment's own rewards count without a function. "
    known, always = ", ".join(columns) or "none", ", ".join((*ALWAYS, *EXTRA))
    return InputError(
        f"it needs the argument {name!r}, which is no column of the data",
        hint=f"{did}columns: {known}; every reward may also take {always}",
    )


def _misspelt(name: str, known: str) -> bool:
    """Whether a name is all but an argument's, and no column's of its own."""
    return difflib.SequenceMatcher(None, name, known).ratio() > 0.85
