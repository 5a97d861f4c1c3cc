"""Base of trackers of services: one run of the service per run folder, each step logged once, samples with the metrics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from reinlm.loop.callbacks import Callback, Control
from reinlm.loop.events import Evaluated, Logged, RunEnded, RunStarted
from reinlm.loop.trackers.logged_steps import LoggedSteps, as_builtins


class ServiceTracker(Callback):
    """Logs to one run of a service, also after a resume. Samples of an evaluation are logged with the next metrics."""

    service: str
    """File name in `trackers/` of the run folder, without `.json`."""

    def __init__(self) -> None:
        self._run: Any = None
        self._samples: Any = None

    @abstractmethod
    def identity(self, event: RunStarted) -> str:
        """The id of a new run of the service."""

    @abstractmethod
    def open(self, event: RunStarted, identity: str) -> Any:
        """Start or continue the run of the service; returns its handle."""

    @abstractmethod
    def log(
        self, run: Any, metrics: Mapping[str, float], table: tuple[list[str], list[list[Any]]] | None, step: int
    ) -> None:
        """Write the metrics of a step; `table` holds the columns and rows of samples, where there are some."""

    @abstractmethod
    def finish(self, run: Any, event: RunEnded) -> None:
        """Close the run of the service."""

    def on_run_started(self, event: RunStarted, control: Control) -> None:
        if not event.over:
            self._logged_steps = LoggedSteps(event, self.service, self.identity(event))
            self._run = self.open(event, self._logged_steps.identity)

    def on_evaluated(self, event: Evaluated, control: Control) -> None:
        self._samples = event.samples

    def on_logged(self, event: Logged, control: Control) -> None:
        samples, self._samples = self._samples, None
        if self._run is not None and self._logged_steps.claim(event.step):
            self.log(self._run, event.metrics, _table(samples) if samples else None, event.step)

    def on_run_ended(self, event: RunEnded, control: Control) -> None:
        if self._run is not None:
            self.finish(self._run, event)
            self._run = None


def _table(samples: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    columns = list(dict.fromkeys(name for sample in samples for name in sample))
    return columns, [[as_builtins(sample.get(name)) for name in columns] for sample in samples]
