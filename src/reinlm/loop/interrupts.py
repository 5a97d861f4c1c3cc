"""Ctrl-C: the first lets the step finish, the second stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after what could be saved was saved. The message says how to go on."""


class Interrupts:
    """Listens for Ctrl-C while a loop works; elsewhere, and off the main thread, Python's own behaviour stands."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked = False
        """Whether Ctrl-C was pressed, once."""
        self._say = say
        self._listening = False

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Count Ctrl-C instead of raising it; the second raises KeyboardInterrupt. May be nested."""
        if self._listening or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._on_interrupt)
        self._listening = True
        try:
            yield
        finally:
            self._listening = False
            signal.signal(signal.SIGINT, before)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._say("interrupt: this step is finished and saved first; press Ctrl-C again to stop at once")
