"""Sends events to callbacks, keeps the first error of one until the step is saved, and collects their state."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from reinlm.errors import InputError, RunError
from reinlm.loop.callbacks import Callback, Control, Requests, check_callbacks, has_state
from reinlm.loop.events import Event, RunEnded
from reinlm.runs.state import pack_state


class Delivery:
    """Sends each event to all callbacks in their order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = check_callbacks(callbacks)
        self.control = Control()
        self.failure: RunError | None = None
        """The first failure; the loop raises it once the step is saved."""
        self._silent: set[int] = set()

    def send(self, event: Event) -> None:
        """Call every callback. One that has raised receives only `RunEnded` afterwards; the others receive all events."""
        for callback in self.callbacks:
            if id(callback) in self._silent and not isinstance(event, RunEnded):
                continue
            self.control._attend(callback.name, event.handler, event.asks)
            try:
                if getattr(callback, event.handler)(event, self.control) is False and event.asks:
                    self.control.stop(f"callback {type(callback).__name__} returned False in {event.handler}")
            except Exception as error:  # noqa: BLE001  users' code; the loop raises it once the step is saved
                self._silent.add(id(callback))
                self.fail(_failure(callback, event.handler, error))

    def take(self) -> Requests:
        """The requests since the last call."""
        return self.control._take()

    def without_clashes(self, asked: Requests, metrics: Mapping[str, float]) -> dict[str, float]:
        """The metrics of callbacks, without those that the run logs itself, which are recorded as a failure."""
        for name in asked.logged.keys() & metrics.keys():
            self.fail(RunError(f"callback {asked.by[name]} logged {name!r}, which the run logs itself"))
        return {name: value for name, value in asked.logged.items() if name not in metrics}

    def fail(self, failure: RunError) -> None:
        if self.failure is None:
            self.failure = failure
        else:
            self.failure.add_note(str(failure))

    def state_dict(self) -> dict[str, Any]:
        """The state of every callback that has one, by name. Raises RunError for a state that cannot be stored."""
        states: dict[str, Any] = {}
        for callback in self.callbacks:
            if has_state(callback):
                try:
                    state = callback.state_dict()
                except Exception as error:
                    raise _failure(callback, "state_dict", error) from error
                if not isinstance(state, dict):
                    raise RunError(f"callback {type(callback).__name__} returned a state_dict: {state!r} is no dict")
                try:
                    pack_state(state)
                except TypeError as error:
                    raise RunError(f"callback {type(callback).__name__} returned a state_dict: {error}") from error
                states[callback.name] = state
        return states

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Give the callbacks their states back; one without a state in the checkpoint keeps its initial state.

        Raises:
            InputError: where the checkpoint holds the state of a callback that is not there.
        """
        known = {callback.name: callback for callback in self.callbacks if has_state(callback)}
        missing = sorted(states.keys() - known.keys())
        if missing:
            raise InputError(
                f"the run to resume had callbacks with state that are not given: {', '.join(missing)}",
                hint="resume from Python with the same callbacks=[…]",
            )
        for name, state in states.items():
            try:
                known[name].load_state_dict(state)
            except Exception as error:
                raise _failure(known[name], "load_state_dict", error) from error


def send_event(callbacks: Sequence[Callback], event: Event, error: BaseException | None = None) -> None:
    """Send one event. A failure is added as a note to `error`, which ends the run, or raised if that is None."""
    delivery = Delivery(callbacks)
    delivery.send(event)
    if delivery.failure is not None and error is None:
        raise delivery.failure
    if delivery.failure is not None and error is not None:
        error.add_note(str(delivery.failure))


def _failure(callback: Callback, method: str, error: Exception) -> RunError:
    """Names the callback, the method, and the innermost line of the callback's own file that the error came through."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is the call here
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    failure = RunError(f"callback {type(callback).__name__} failed in {method}{where}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
