"""Progress of a run in the console."""

from __future__ import annotations

from contextlib import ExitStack

from reinlm.loop.callbacks import Callback, Control
from reinlm.loop.events import Logged, RunEnded, RunStarted
from reinlm.runs.progress import Progress


class ConsoleTracker(Callback):
    """Shows a run as `Progress` does."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._shown = ExitStack()

    def on_run_started(self, event: RunStarted, control: Control) -> None:
        self._shown.enter_context(self._progress.run(event.kind, event.total_steps, event.done))

    def on_logged(self, event: Logged, control: Control) -> None:
        self._progress.update(event.step, event.metrics)

    def on_run_ended(self, event: RunEnded, control: Control) -> None:
        self._shown.close()
