"""Callbacks: objects that receive the events of a run and may log metrics, stop it, or change its learning rate."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from reinlm.errors import InputError, nearest
from reinlm.loop.events import (
    BatchPrepared,
    Evaluated,
    GroupScored,
    Logged,
    RunEnded,
    RunStarted,
    Saved,
    StepEnded,
    StepStarted,
    Updated,
)
from reinlm.runs.declarations import NAME_CHARACTERS, is_clock, is_library_name, is_metric_name

HANDLERS = {
    event.handler: ("event", "control")
    for event in (
        *(RunStarted, StepStarted, GroupScored, BatchPrepared, Updated),
        *(Evaluated, StepEnded, Logged, Saved, RunEnded),
    )
}
"""The methods that receive events, and what they are called with."""

_STATE = ("state_dict", "load_state_dict")


class Callback:
    """Base of callbacks and trackers. Override what is needed; every method does nothing by default.

    Callbacks run in the order given. Requests to `control` take effect at the end of the step, before its record and
    checkpoint are written.

    A callback with state overrides `state_dict` and `load_state_dict`; the state is in every checkpoint, so a killed and
    resumed run gives the same results. State that changes in `on_logged` or `on_saved` is only in the next checkpoint.

    Methods whose names begin with `on_` are handlers: async ones and those that belong to no event are errors.

    A callback that raises ends the run with a `RunError` that names it, after the step was finished without it and saved.

    Example:
        class Drift(Callback):
            def on_step_ended(self, event, control):
                control.log("drift", event.metrics["kl"] / event.step)
                if event.metrics["kl"] > 10:
                    control.stop("the policy has left its reference")
    """

    @property
    def name(self) -> str:
        """Its name in messages and checkpoints; callbacks with state need different names."""
        return type(self).__name__

    def on_run_started(self, event: RunStarted, control: Control) -> None: ...

    def on_step_started(self, event: StepStarted, control: Control) -> None: ...

    def on_group_scored(self, event: GroupScored, control: Control) -> None: ...

    def on_batch_prepared(self, event: BatchPrepared, control: Control) -> None: ...

    def on_updated(self, event: Updated, control: Control) -> None: ...

    def on_evaluated(self, event: Evaluated, control: Control) -> None: ...

    def on_step_ended(self, event: StepEnded, control: Control) -> None: ...

    def on_logged(self, event: Logged, control: Control) -> None: ...

    def on_saved(self, event: Saved, control: Control) -> None: ...

    def on_run_ended(self, event: RunEnded, control: Control) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        """The state for checkpoints: plain values, tensors and NumPy arrays, nested to any depth."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""


@dataclass
class Requests:
    """The requests of callbacks since the end of the last step."""

    logged: dict[str, float] = field(default_factory=dict)
    by: dict[str, str] = field(default_factory=dict)
    """Metric -> the callback that logged it."""
    stop: str | None = None
    rates: list[tuple[str, float]] = field(default_factory=list)
    """("set" or "scale", number), in the order of the calls."""
    warnings: list[str] = field(default_factory=list)


class Control:
    """Requests of a callback to the run. They take effect at the end of the step, before its checkpoint."""

    def __init__(self) -> None:
        self._requests = Requests()
        self._asking = ""
        self._closed: str | None = None

    @property
    def logged(self) -> Mapping[str, float]:
        """Metrics that callbacks have logged in this step so far."""
        return MappingProxyType(self._requests.logged)

    @property
    def stopping(self) -> str | None:
        """The reason for which a callback asked in this step to end the run; None where none did."""
        return self._requests.stop

    def log(self, name: str, value: float) -> None:
        """Add a metric to the record of the step.

        A value is a number, or a tensor or an array of one element. NaN and infinities are logged; metrics.jsonl has null there.
        `reinlm.declare_metrics` gives it a unit and a meaning, which the report shows.

        Raises:
            InputError: for a name that the library uses or that was logged in this step already, or a value that is no number.
        """
        self._check_open("log")
        if not is_metric_name(name):
            raise InputError(f"a metric's name has {NAME_CHARACTERS}, not {name!r}")
        if name == "step" or name.startswith("eval/") or is_clock(name) or is_library_name(name):
            raise InputError(f"{name!r} is a name of the library's own", hint=f"log it as 'mine/{name}'")
        if name in self._requests.logged:
            raise InputError(f"{name!r} was logged in this step by {self._requests.by[name]}", hint="take another name")
        self._requests.logged[name] = _checked_number(f"metric {name!r}", value)
        self._requests.by[name] = self._asking

    def stop(self, reason: str) -> None:
        """End the run after this step, with an evaluation and a checkpoint. The first reason given counts."""
        self._check_open("stop")
        if not isinstance(reason, str) or not reason.strip():
            raise InputError(f"stop needs a reason, not {reason!r}")
        self._requests.stop = self._requests.stop or reason

    def warn(self, message: str) -> None:
        """Show a line in the console, and keep it with its step under `findings` of run.json and in the report."""
        self._check_open("warn")
        if not isinstance(message, str) or not message.strip():
            raise InputError(f"warn needs a message, not {message!r}")
        self._requests.warnings.append(message)

    def set_learning_rate(self, value: float) -> None:
        """Use this learning rate of the policy from the next step on instead of the schedule. The critic's stays unchanged."""
        self._change_rate("set", value)

    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the scheduled learning rate of the policy from the next step on. The critic's stays unchanged."""
        self._change_rate("scale", factor)

    def _change_rate(self, verb: str, value: float) -> None:
        self._check_open(f"{verb}_learning_rate")
        number = _checked_number(f"{verb}_learning_rate", value)
        if not (math.isfinite(number) and number > 0):
            raise InputError(f"{verb}_learning_rate takes a finite number above 0, not {value!r}")
        self._requests.rates.append((verb, number))

    def _check_open(self, what: str) -> None:
        if self._closed is not None:
            raise InputError(
                f"{what} has no effect in {self._closed}: nothing may be asked for outside a step",
                hint="ask in on_step_ended",
            )

    def _attend(self, callback: str, handler: str, asks: bool) -> None:
        """Set which callback is called next, and whether it may make requests."""
        self._asking = callback
        self._closed = None if asks else handler

    def _take(self) -> Requests:
        taken, self._requests = self._requests, Requests()
        return taken


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """The callbacks as a tuple.

    Raises:
        InputError: for what is no callback, for a handler that no event has, that is async or does not take (event, control),
            for one of `state_dict` and `load_state_dict` without the other, or for two with state under one name.
    """
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Sequence):
        raise InputError(f"callbacks is a list of Callback objects, not {callbacks!r}", hint="put it into a list")
    for callback in callbacks:
        if isinstance(callback, type) and issubclass(callback, Callback):
            raise InputError(f"callbacks: {callback.__name__} is a class", hint=f"give {callback.__name__}(…)")
        if not isinstance(callback, Callback):
            raise InputError(
                f"callbacks: {callback!r} is a {type(callback).__name__}, not a Callback",
                hint="derive its class from reinlm.Callback",
            )
        _check_methods(callback)
    names = [callback.name for callback in callbacks if has_state(callback)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"callbacks: two with state are named {twice!r}, and the checkpoint could not tell them apart",
            hint="give their class a property `name` that differs",
        )
    return tuple(callbacks)


_SB3 = {
    "_on_step": "on_step_ended",
    "_on_training_start": "on_run_started",
    "_on_training_end": "on_run_ended",
    "_on_rollout_start": "on_step_started",
    "_on_rollout_end": "on_batch_prepared",
}
"""Methods of Stable-Baselines3's BaseCallback -> the handler here."""


def _check_methods(callback: Callback) -> None:
    """Raise InputError for handlers that would never be called or cannot be called."""
    theirs = next((method for method in _SB3 if hasattr(callback, method)), None)
    if theirs is not None:
        raise InputError(
            f"callback {type(callback).__name__} has Stable-Baselines3's method {theirs}, which is never called",
            hint=f"write {_SB3[theirs]}(self, event, control); control.stop(…) ends the run",
        )
    given, name = {method for method in dir(callback) if method.startswith("on_")}, type(callback).__name__
    for method in sorted(given - HANDLERS.keys()):
        near = nearest(method, HANDLERS)
        raise InputError(
            f"callback {name} has a method {method}, and no event has this name",
            hint=(f"did you mean {near}? " if near else "") + f"Handlers: {', '.join(HANDLERS)}",
        )
    for method, arguments in {**HANDLERS, "state_dict": (), "load_state_dict": ("state",)}.items():
        function = getattr(callback, method)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise InputError(
                f"callback {name}: {method} is async, and handlers are called", hint="write def, not async def"
            )
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError as error:
            taken = f"({', '.join(('self', *arguments))})"
            raise InputError(f"callback {name}: {method} cannot be called with {taken}: {error}") from None
        except ValueError:  # a builtin without a signature
            continue
    for method, other in (_STATE, _STATE[::-1]):
        if _overrides(callback, method) and not _overrides(callback, other):
            raise InputError(
                f"callback {name} has {method} and no {other}: a resumed run would lose its state",
                hint=f"write {other} too",
            )


def has_state(callback: Callback) -> bool:
    """Whether it keeps something in checkpoints."""
    return _overrides(callback, "state_dict")


def _overrides(callback: Callback, method: str) -> bool:
    """Whether its class, or the object itself, has a method of its own in place of the base's, which does nothing."""
    return getattr(getattr(callback, method), "__func__", None) is not getattr(Callback, method)


def _checked_number(what: str, value: Any) -> float:
    """A number, or a tensor or an array of one element, as a float."""
    if not isinstance(value, bool | str | bytes):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):  # torch raises RuntimeError for several elements
            pass
    raise InputError(f"{what} must be a number, not {value!r}")
