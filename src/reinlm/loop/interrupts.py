"""Ctrl-C and SIGTERM: the first lets the step finish, the second stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, after what could be saved was saved. The message says how to go on."""

    def __init__(self, message: str = "", signum: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.signum = signum
        """Which signal it was."""


class Interrupts:
    """Handles Ctrl-C and SIGTERM while a loop runs in the main thread.

    A SIGTERM handler that the program has set stays in place.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked = 0
        """The first signal received; 0 before."""
        self._say = say
        self._listening = False

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Count signals instead of raising them; the second raises KeyboardInterrupt. May be nested."""
        if self._listening or threading.current_thread() is not threading.main_thread():
            yield
            return
        with ExitStack() as before:
            for signum in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(signum)
                if handler is None or (signum == signal.SIGTERM and handler != signal.SIG_DFL):
                    continue
                signal.signal(signum, self._on_signal)
                before.callback(signal.signal, signum, handler)
            self._listening = True
            before.callback(setattr, self, "_listening", False)
            yield

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = number
        name = "interrupt" if number == signal.SIGINT else signal.Signals(number).name
        again = "press Ctrl-C again" if number == signal.SIGINT else "a second signal is needed"
        self._say(f"{name}: this step is finished and saved first; {again} to stop at once")
